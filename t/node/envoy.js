// What Envoy makes of a configuration: it is read as JSON from the input,
// checked field by field against Envoy's own messages, with the rules that are
// noted there, and its listener is asked what it would send to the rate limit
// service.  Prints {"wrong": [TEXT...], "calls": [CALL or null...], "health":
// [NAME...], "address": {...}}; there is a call for each set of fields.
//
//     node envoy.js FIELDS...
//
// where FIELDS is a JSON object of a request's fields.  Envoy itself checks
// more: that names of extensions are known, for one.

const fs = require('fs');
const path = require('path');
const protobuf = require('protobufjs');

const deps = path.join(path.dirname(require.resolve(
    '@grpc/grpc-js-xds/package.json')), 'deps');
const folders = ['envoy-api', 'xds', 'googleapis', 'protoc-gen-validate']
    .map((name) => path.join(deps, name));

protobuf.common('descriptor', require(
    'protobufjs/google/protobuf/descriptor.json').nested.google.nested.protobuf
    .nested);

const root = new protobuf.Root();

root.resolvePath = (origin, target) => folders
    .map((folder) => path.join(folder, target))
    .find((file) => fs.existsSync(file)) || null;

const wrong = [];


// all files of a package are in the folder of its name

function find(name) {
    const folder = name.split('.').slice(0, -1).join('/');

    for (const at of folders.map((top) => path.join(top, folder))) {
        if (fs.existsSync(at)) {
            root.loadSync(fs.readdirSync(at)
                .filter((file) => file.endsWith('.proto'))
                .map((file) => `${folder}/${file}`), { keepCase: true });
        }
    }

    return root.lookupType(name);
}


function complain(at, text) {
    wrong.push(`${at}: ${text}`);
}


const wrapped = /^google\.protobuf\.(\w+)Value$/;
const scalars = {
    string: (value) => typeof value === 'string',
    bool: (value) => typeof value === 'boolean',
    uint32: (value) => Number.isInteger(value) && value >= 0
                       && value < 2 ** 32,
};

// of rules that a field has: whether the value is as it must be

const rules = {
    required: () => true,
    defined_only: () => true,
    min_len: (value, bound) => value.length >= bound,
    min_bytes: (value, bound) => Buffer.byteLength(value) >= bound,
    max_bytes: (value, bound) => Buffer.byteLength(value) <= bound,
    min_items: (value, bound) => value.length >= bound,
    gt: (value, bound) => parseFloat(value) > (bound.seconds || 0),
    gte: (value, bound) => parseFloat(value) >= (bound.seconds || bound),
    lte: (value, bound) => parseFloat(value) <= (bound.seconds || bound),
    in: (value, list) => [].concat(list).includes(value),
    well_known_regex: (value, kind) => (kind === 'HTTP_HEADER_NAME'
        ? /^:?[-!#$%&'*+.^_|~`\w]+$/ : /^[^\x00-\x08\x0a-\x1f\x7f]*$/)
        .test(value),
    strict: () => true,
    items: (list, kinds) => Object.values(kinds).every((bounds) =>
        Object.entries(bounds).every(([name, bound]) =>
            list.every((value) => rules[name](value, bound)))),
};


function checkScalar(kind, value, at) {
    if (!scalars[kind]) {
        complain(at, `a value of type ${kind} can not be checked`);

    } else if (!scalars[kind](value)) {
        complain(at, `${JSON.stringify(value)} is not of type ${kind}`);
    }
}


function rulesOf(field) {
    const found = (field.parsedOptions || [])
        .map((option) => option['(validate.rules)']).filter(Boolean);

    return Object.assign({}, ...found.flatMap((each) => Object.values(each)));
}


function checkRules(field, value, at) {
    for (const [name, bound] of Object.entries(rulesOf(field))) {
        if (!rules[name]) {
            complain(at, `the rule "${name}" can not be checked`);

        } else if (!rules[name](value, bound)) {
            complain(at, `${JSON.stringify(value)} breaks the rule "${name}"`);
        }
    }
}


function checkOne(field, value, at) {
    const type = field.resolve().resolvedType;
    const [, simple] = wrapped.exec(field.type) || [];

    if (type instanceof protobuf.Enum) {
        if (!(value in type.values)) {
            complain(at, `"${value}" is no ${type.name}`);
        }

    } else if (field.type === 'google.protobuf.Duration') {
        if (!/^\d+(\.\d{1,9})?s$/.test(value)) {
            complain(at, `"${value}" is not a duration`);
        }

    } else if (field.type === 'google.protobuf.Any') {
        const { '@type': url = '', ...rest } = value;

        check(find(url.replace(/^type\.googleapis\.com\//, '')), rest, at);

    } else if (simple) {
        checkScalar(simple.toLowerCase(), value, at);

    } else if (type) {
        check(type, value, at);

    } else {
        checkScalar(field.type, value, at);
    }
}


function checkField(field, value, at) {
    const parts = field.map ? Object.entries(value)
                : field.repeated ? [...value].entries() : null;

    if ((field.options || {}).deprecated) {
        complain(at, 'is deprecated');
    }

    checkRules(field, value, at);

    if (!parts) {
        checkOne(field, value, at);
        return;
    }

    for (const [name, part] of parts) {
        checkOne(field, part, `${at}[${name}]`);
    }
}


function check(type, value, at) {
    if (value === null || typeof value !== 'object' || Array.isArray(value)) {
        complain(at, `is not a ${type.name}`);
        return;
    }

    for (const [name, part] of Object.entries(value)) {
        if (!type.fields[name]) {
            complain(at, `${type.name} has no "${name}"`);

        } else {
            checkField(type.fields[name], part, `${at}.${name}`);
        }
    }

    for (const field of type.fieldsArray) {
        if (rulesOf(field).required && !field.partOf
            && !(field.name in value))
        {
            complain(at, `"${field.name}" is missing`);
        }
    }

    for (const { name, oneof, options } of type.oneofsArray) {
        const n = oneof.filter((each) => each in value).length;

        if (n > 1 || (n === 0 && (options || {})['(validate.required)'])) {
            complain(at, `${n} of "${name}"`);
        }
    }
}


// an entry of a descriptor, or null: then there is no descriptor

const actions = {
    request_headers: ({ header_name: name, descriptor_key: key }, fields) =>
        name in fields ? { key, value: fields[name] } : null,
};


function entry(action, fields) {
    const [[kind, settings]] = Object.entries(action);

    if (!actions[kind]) {
        complain('actions', `what "${kind}" does is not known here`);
        return null;
    }

    return actions[kind](settings, fields);
}


function call({ domain }, route, fields) {
    const descriptors = route.rate_limits
        .map((limit) => limit.actions.map((action) => entry(action, fields)))
        .filter((entries) => !entries.includes(null))
        .map((entries) => ({ entries }));

    return descriptors.length ? { domain, descriptors } : null;
}


const config = JSON.parse(fs.readFileSync(0));

check(find('envoy.config.bootstrap.v3.Bootstrap'), config, 'config');

const { listeners, clusters } = config.static_resources;
const manager = listeners[0].filter_chains[0].filters[0].typed_config;
const { typed_config: filter } = manager.http_filters[0];
const { route } = manager.route_config.virtual_hosts[0].routes[0];
const named = (wanted) => clusters.find(({ name }) => name === wanted);
const service = named(filter.rate_limit_service.grpc_service.envoy_grpc
    .cluster_name);

if (!named(route.cluster)) {
    complain('route', 'there is no such cluster');
}

console.log(JSON.stringify({
    wrong,
    calls: process.argv.slice(2)
        .map((fields) => call(filter, route, JSON.parse(fields))),
    health: service.health_checks
        .map(({ grpc_health_check: each = {} }) => each.service_name),
    address: service.load_assignment.endpoints[0].lb_endpoints[0].endpoint
        .address.socket_address,
}));
