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
--   8 bytes  the number of the question, 0 if it is none
--   8 bytes  all questions of this worker with lower numbers are settled: they
--            will not be void
--   4 bytes  the worker
--   2 bytes  deltas in the batch
--   2 bytes  deltas after it, that are in no batch yet
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

-- a state is needed several times, and read once

local values, get, set = {}, read, call

local function read(...)
    local name, key = ...

    if name ~= 'GET' then
        return get(...)
    end

    local value = values[key]

    if value == nil then
        value = get(name, key)
        values[key] = value
    end

    return value
end

local function call(...)
    local name, key, value = ...

    if name == 'SET' then
        values[key] = value
    else
        values[key] = nil
    end

    return set(...)
end

--- functions
--- require decide

local sub = string.sub

-- A record begins with the number of its machines, 2 bytes.  A machine in a
-- record: its name, the number of its last batch; the times until which its
-- lease and its standing lease count and until which its number matters; both
-- leases.

local record_size = 46

-- Questions follow that are not settled: machine, worker, number; stamp and
-- cost of what was charged, or 0 if nothing must be; the time until which that
-- matters.

local question_size = 39
local first_delta = 121

-- an argument with another cost and stamp

local function with(argument, cost, stamp)
    return sub(argument, 1, 8) .. pack('<I8', cost) .. sub(argument, 17, 64)
           .. pack('<I8', stamp)
end

local function add(key, argument)
    --- algorithms add
end

local function charge(key, argument)
    --- algorithms charge
end

local function refund(key, argument)
    --- algorithms refund
end

local function used(key, argument)
    --- algorithms used
end

-- counts some deltas; returns their sum

local function apply(key, argument, first, count)
    local sum, last = 0, 0

    for at = first, first + (count - 1) * 16, 16 do
        local stamp, added, refunded = unpack('<I8I4I4', argument, at)

        -- the difference alone: a log that is full would forget older times for
        -- both; refunds of whatever was charged last come after all charges

        if stamp == latest then
            last = refunded

        elseif added > refunded then
            add(key, with(argument, added - refunded, stamp))

        elseif added < refunded then
            refund(key, with(argument, refunded - added, stamp))
        end

        sum = sum + added - refunded
    end

    if last > 0 then
        refund(key, with(argument, last, latest))
    end

    return sum
end

-- what the record of a limit says

local function consult(i)
    local argument = ARGV[i + 1]
    local record = read('GET', KEYS[n + i])
    local machine = sub(argument, 73, 80)
    local number, interval, question, settled, worker, batch, open
        = unpack('<I8I8I8I8I4I2I2', argument, 81)
    local quota, period, ceiling = unpack('<I8I8I8', argument, 17)
    local ends = now + 3 * interval + 60000000
    local matters = now + period * (4 + (ceiling - ceiling % quota) / quota)
    local limit = {
        key = KEYS[i], record = KEYS[n + i], argument = argument,
        machine = machine, number = number, interval = interval, batch = batch,
        open = open, counted = 0, own = '', others = '', kept = 0,
        machines = 1, leased = 0, standing = 0, unreported = 0, asked = {},
        question = question, worker = worker, questions = {}, ends = ends,
        matters = (matters > ends) and matters or ends
    }

    if type(record) ~= 'string' or #record < 2 then
        record = '\0\0'
    end

    local rest = 3 + unpack('<I2', record) * record_size

    if rest > #record + 1 or (#record + 1 - rest) % question_size ~= 0 then
        record, rest = '', 3
    end

    for at = 3, rest - 1, record_size do
        local counted, fresh, ends, kept, lease, standing
            = unpack('<I7I7I7I7I5I5', record, at + 8)

        if sub(record, at, at + 7) == machine then
            limit.counted = counted
            limit.own = sub(record, at, at + record_size - 1)

        elseif kept > now then
            limit.others = limit.others
                           .. sub(record, at, at + record_size - 1)
            limit.kept = (kept > limit.kept) and kept or limit.kept

            if ends > now then
                limit.machines = limit.machines + 1
                limit.leased = limit.leased + ((fresh > now) and lease
                                                              or standing)
                limit.standing = limit.standing + standing
            end
        end
    end

    for at = rest, #record, question_size do
        local by, number, stamp, cost, kept
            = unpack('<I4I7I8I5I7', record, at + 8)
        local mine = by == worker and sub(record, at, at + 7) == machine

        if mine and number == question then
            limit.asked[#limit.asked + 1] = { stamp = stamp, cost = cost }

        elseif kept > now and not (mine and number < settled) then
            limit.kept = (kept > limit.kept) and kept or limit.kept
            limit.questions[#limit.questions + 1]
                = sub(record, at, at + question_size - 1)
        end
    end

    return limit
end

-- the question of a limit is not settled

local function remember(limit, stamp, cost)
    limit.kept = (limit.matters > limit.kept) and limit.matters or limit.kept
    limit.questions[#limit.questions + 1]
        = limit.machine .. pack('<I4I7I8I5I7', limit.worker, limit.question,
                                stamp, cost, limit.matters)
end

local function save(limit)
    local record = limit.others .. table.concat(limit.questions)

    if record == '' then
        call('DEL', limit.record)
    else
        call('SET', limit.record,
             pack('<I2', #limit.others / record_size) .. record, 'PXAT',
             string.format('%d', (limit.kept + 999) / 1000))
    end
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
                refund(limit.key, with(limit.argument, asked.cost, asked.stamp))
            end
        end

        if limit.own ~= '' then
            local kept = unpack('<I7', limit.own, 30)

            limit.kept = (kept > limit.kept) and kept or limit.kept
            limit.others = limit.others .. limit.own
        end

        save(limit)
    end

    return echo
end

-- What is in no batch yet is counted in a copy of the counter, which takes the
-- place of the record for as long as this call needs it.

local function try(limit)
    local state = read('GET', limit.key)

    if state and #state > 0 then
        call('SET', limit.record, state, 'PX', '60000')
    else
        call('DEL', limit.record)
    end

    limit.unreported = apply(limit.record, limit.argument,
                             first_delta + 16 * limit.batch, limit.open)
end

-- A quarter of what is left is leased to machines, and no more than a fortieth
-- of the limit to those that have not exchanged for a while.

local function least(a, b, c)
    a = (a < b) and a or b
    a = (a < c) and a or c

    return (a > 0) and a - a % 1 or 0
end

local function grant(limit, left)
    local n = limit.machines
    local quota = unpack('<I8', limit.argument, 17)
    local part, small = (left - left % 4) / 4, (quota - quota % 40) / 40

    limit.lease = least(part / (n + 1), part - limit.leased, 1099511627775)
    limit.stand = least(limit.lease, small / (n + 1), small - limit.standing)
    limit.share = least((left - limit.leased) / n, left, 1099511627775)

    if limit.lease == 0 and limit.unreported <= 0 and limit.own == ''
       and limit.counted == 0
    then
        return
    end

    local reserved = limit.lease + limit.unreported

    limit.kept = (limit.matters > limit.kept) and limit.matters or limit.kept
    limit.others = limit.others .. limit.machine
                   .. pack('<I7I7I7I7I5I5', limit.counted,
                           now + 2 * limit.interval + 100000, limit.ends,
                           limit.matters, (reserved > 0) and reserved or 0,
                           limit.stand)
end

local verdicts, tried, admitted = '', false, nil

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
        ARGV[i + 1] = with(ARGV[i + 1], 0, 0)
    end

    if limit.open > 0 then
        KEYS[i] = limit.record
    end
end

if op == 'a' then
    admitted, verdicts = decide(n, true)
end

for _, limit in ipairs(counters) do
    local ceiling = unpack('<I8', limit.argument, 33)

    grant(limit, ceiling - used((limit.open > 0) and limit.record or limit.key,
                                with(limit.argument, 0, 0)))

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
    save(limit)
end

local reply = { echo, pack('<I8', now), verdicts }
local size = 8 + #verdicts + 36 * n

for i = 1, n do
    local limit = limits[i]
    local state = read('GET', limit.key)

    local flags = (limit.number <= limit.counted) and 1 or 0

    state = (type(state) == 'string') and state or ''

    if size + #state > 14000 then
        state, flags = '', flags + 2
    end

    size = size + #state
    reply[i + 3] = pack('<I8I8I8I8I4', limit.lease, limit.stand, limit.share,
                        flags, #state)
                   .. state
end

return table.concat(reply)
