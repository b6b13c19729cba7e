-- The scripts for write-back: a machine decides by itself, and reports what it
-- has admitted from time to time.
--
-- A call has two keys for each limit: first come those of all counters, then
-- those of their records, which say what Redis knows of the machines that use a
-- counter.  The letter op is one of
--
--   x  exchange: counts a batch of the machine's charges, unless the record
--      says that this has been done; returns what follows
--   a  ask: does the same, and decides as "c" does, about the counters and
--      what the machine has charged after the batch; returns the verdicts and
--      what follows
--   v  void: the worker will not hear the answer to this question any more;
--      takes back what it has charged, or will charge if it comes later;
--      returns nothing
--
-- An argument goes on with
--
--   8 bytes  the machine
--   8 bytes  the number of its batch, 0 if there is none
--   8 bytes  the time between two exchanges
--   2 bytes  deltas in the batch
--   2 bytes  deltas after it, that are in no batch yet
--   4 bytes  the worker
--   8 bytes  the number of the question, 0 if it is none
--   8 bytes  all questions of this worker with lower numbers are settled: they
--            will not be void
--   then     16 bytes for each delta: 8 of stamp, 4 of what was added under
--            this stamp, and 4 of what was refunded
--
-- Behind the echo the reply is the time, 8 bytes, then the verdicts, if any,
-- and for each limit
--
--   8 bytes  lease: the machine may charge so much before it asks
--   8 bytes  standing: so much if it has not exchanged for a while
--   8 bytes  share: so much if it can't ask
--   8 bytes  1 if the batch is counted, and 2 more if the counter's state is
--            too long for the reply
--   4 bytes  length of that state, which follows; 0 if there is none

local n = #KEYS / 2

--- include begin

-- A state is needed several times, and read once.  One that keeps its length is
-- written in place, which costs Redis less, also with the expiry after it.

local values, get, set = {}, read, call
local sub, concat = string.sub, table.concat
local KEYS, ARGV = KEYS, ARGV

local function read(name, key, first, last)
    if name ~= 'GET' then
        return get(name, key, first, last)
    end

    local value = values[key]

    if value == nil then
        value = get('GET', key)
        values[key] = value
    end

    return value
end

local function write(key, before, value, expires)
    if before and #before == #value then
        set('SETRANGE', key, '0', value)
        set('PEXPIREAT', key, expires)
    else
        set('SET', key, value, 'PXAT', expires)
    end
end

local function call(name, key, ...)
    local value, _, expires = ...
    local before = values[key]

    if name ~= 'SET' then
        values[key] = nil
        return set(name, key, ...)
    end

    values[key] = value
    write(key, before, value, expires)
end

-- many counters and records have the same expiry

local texts = {}

local function format(_, number)
    local text = texts[number]

    if not text then
        text = string.format('%d', number)
        texts[number] = text
    end

    return text
end

--- functions
--- require decide

-- A record begins with the number of its machines, 2 bytes.  A machine in a
-- record: its name, the number of its last batch; the times until which its
-- lease and its standing lease count and until which its number matters; both
-- leases.

local record_size, machine_format = 46, '<c8I7I7I7I7I5I5'

-- Questions follow that are not settled: machine, worker, number; stamp and
-- cost of what was charged, or 0 if nothing must be; the time until which that
-- matters.

local question_size, question_format = 39, '<c8I4I7I8I5I7'
local first_delta = 121

local function add(key, argument, stamp, amount)
    --- algorithms add
end

local function charge(key, argument)
    --- algorithms charge
end

local function refund(key, argument, stamp, amount)
    --- algorithms refund
end

local function used(key, argument)
    --- algorithms used
end

-- Counts some deltas.  Returns what is used then, if that is known, and the sum
-- of the deltas.

local function apply(key, argument, first, count)
    local sum, last, level = 0, 0, nil

    for at = first, first + (count - 1) * 16, 16 do
        local stamp, added, refunded = unpack('<I8I4I4', argument, at)

        -- the difference alone: a log that is full would forget older times for
        -- both; refunds of whatever was charged last come after all charges

        if stamp == latest then
            last = refunded

        elseif added > refunded then
            level = add(key, argument, stamp, added - refunded)

        elseif added < refunded then
            level = refund(key, argument, stamp, refunded - added)
        end

        sum = sum + added - refunded
    end

    if last > 0 then
        level = refund(key, argument, latest, last)
    end

    return level, sum
end

-- a record as it is to be, in the place of what it was

local prefixes = {}

local function save(key, before, machines, questions, kept)
    local count = #machines / record_size

    if machines == '' and questions == '' then
        set('DEL', key)
        return
    end

    prefixes[count] = prefixes[count] or pack('<I2', count)

    write(key, before, prefixes[count] .. machines .. questions,
          format('%d', (kept + 999) / 1000))
end

-- A quarter of what is left is leased to machines, and no more than a fortieth
-- of the limit to those that have not exchanged for a while.  Returns lease,
-- standing lease and share.

local function least(a, b)
    a = (a < b) and a or b

    return (a > 0) and a - a % 1 or 0
end

local function grant(left, quota, machines, leased, standing)
    local part, small = left / 4, quota / 40

    part, small = part - part % 1, small - small % 1

    local lease = least(part / (machines + 1), part - leased)

    small = least(small / (machines + 1), small - standing)
    lease = (lease < 1099511627775) and lease or 1099511627775

    return lease, (small < lease) and small or lease,
           least((left - leased) / machines, 1099511627775)
end

-- the entry of a machine

local function entry(machine, counted, interval, ends, kept, reserved, standing)
    return pack(machine_format, machine, counted, now + 2 * interval + 100000,
                ends, kept, reserved, standing)
end

-- what the reply says of a limit

local reply, length, size = { echo, pack('<I8', now), '' }, 3, 8 + 36 * n

local function append(key, lease, standing, share)
    local state, flags = read('GET', key), 1

    if not state or #state == 0 then
        state = ''
    end

    if size + #state > 14000 then
        state, flags = '', 3
    end

    size = size + #state

    reply[length + 1] = pack('<I8I8I8I8I4', lease, standing, share, flags,
                             #state)
    reply[length + 2] = state
    length = length + 2
end

if op == 'x' then
    for i = 1, n do
        --- include record

        local level

        if number > counted then
            level = apply(key, argument, first_delta, batch)
            counted = number
        end

        local lease, small, share
            = grant(ceiling - (level or used(key, argument)), quota, machines,
                    leased, standing)

        if lease > 0 or counted > 0 then
            others = others .. entry(machine, counted, interval, ends, matters,
                                     lease, small)
            kept = (matters > kept) and matters or kept
        end

        save(KEYS[n + i], before, others, questions, kept)
        append(key, lease, small, share)
    end

    return concat(reply)
end

-- The others are rarer, and need what a record says at several times.

local function consult(i)
    --- include record

    return {
        key = key, record = KEYS[n + i], argument = argument, quota = quota,
        ceiling = ceiling, machine = machine, number = number, batch = batch,
        interval = interval, open = open, before = before, others = others,
        questions = questions, asked = asked or {}, own = own,
        counted = counted, kept = kept, machines = machines, leased = leased,
        standing = standing, worker = worker, question = question, ends = ends,
        matters = matters, unreported = 0
    }
end

-- something in a record matters as long as the number of a batch

local function keep(limit)
    limit.kept = (limit.matters > limit.kept) and limit.matters or limit.kept
end

-- the question of a limit is not settled

local function remember(limit, stamp, cost)
    limit.questions = limit.questions
                      .. pack(question_format, limit.machine, limit.worker,
                              limit.question, stamp, cost, limit.matters)
    keep(limit)
end

-- Limits that share a counter share what is known of it: there is one table
-- for each counter, and limit i has table limits[i].

local counters, limits = {}, {}

for i = 1, n do
    local record = KEYS[n + i]

    if not limits[record] then
        limits[record] = consult(i)
        counters[#counters + 1] = limits[record]
    end

    limits[i] = limits[record]
end

if op == 'v' then
    for _, limit in ipairs(counters) do

        if #limit.asked == 0 then
            remember(limit, 0, 0)
        end

        for _, asked in ipairs(limit.asked) do
            if asked.cost > 0 then
                refund(limit.key, limit.argument, asked.stamp, asked.cost)
            end
        end

        if limit.own then
            limit.others = limit.others .. limit.own
            keep(limit)
        end

        save(limit.record, limit.before, limit.others, limit.questions,
             limit.kept)
    end

    return echo
end

-- What is in no batch yet is counted in a copy of the counter, which takes the
-- place of the record for as long as this call needs it.

local function try(limit)
    local state = read('GET', limit.key)

    if state and #state > 0 then
        set('SET', limit.record, state, 'PX', '60000')
    else
        set('DEL', limit.record)
    end

    values[limit.record], limit.before = state, nil

    local _, sum = apply(limit.record, limit.argument,
                         first_delta + 16 * limit.batch, limit.open)

    limit.unreported = sum
end

local tried = false

for _, limit in ipairs(counters) do
    if limit.number > limit.counted then
        apply(limit.key, limit.argument, first_delta, limit.batch)
        limit.counted = limit.number
    end

    if limit.open > 0 then
        try(limit)
        tried = true
    end
end

for i = 1, n do
    local limit = limits[i]

    -- a question that comes after its void charges nothing

    if #limit.asked > 0 then
        ARGV[i + 1] = sub(ARGV[i + 1], 1, 8) .. pack('<I8', 0)
                      .. sub(ARGV[i + 1], 17)
    end

    if limit.open > 0 then
        KEYS[i] = limit.record
    end
end

local admitted, verdicts = decide(n, true)

for _, limit in ipairs(counters) do
    local level = used((limit.open > 0) and limit.record or limit.key,
                       limit.argument)

    limit.lease, limit.small, limit.share
        = grant(limit.ceiling - level, limit.quota, limit.machines,
                limit.leased, limit.standing)

    if limit.lease > 0 or limit.unreported > 0 or limit.own
       or limit.counted > 0
    then
        local reserved = limit.lease + limit.unreported

        limit.others = limit.others
                       .. entry(limit.machine, limit.counted, limit.interval,
                                limit.ends, limit.matters,
                                (reserved > 0) and reserved or 0, limit.small)
        keep(limit)
    end

    for _, asked in ipairs(limit.asked) do
        remember(limit, asked.stamp, asked.cost)
    end
end

for i = 1, n do
    local limit = limits[i]
    local cost = unpack('<I8', ARGV[i + 1], 9)

    KEYS[i] = limit.key

    if admitted and cost > 0 and limit.question > 0 then
        remember(limit, unpack('<I8', verdicts, 56 * i - 7), cost)
    end
end

-- what was decided about the copies is done to the counters

if tried and admitted then
    for i = 1, n do
        charge(KEYS[i], ARGV[i + 1])
    end

elseif tried then
    decide(n, false)
end

for _, limit in ipairs(counters) do
    save(limit.record, limit.before, limit.others, limit.questions, limit.kept)
end

reply[3], size = verdicts, size + #verdicts

for i = 1, n do
    local limit = limits[i]

    append(limit.key, limit.lease, limit.small, limit.share)
end

return concat(reply)
