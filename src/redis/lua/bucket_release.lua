-- Drops a reservation, if it is not forgotten already; its stamp is its epoch.

local stamp = unpack('<I8', argument, 65)

if stamp == epoch then
    last = (last > cost) and last - cost or 0

elseif stamp == epoch - 1 then
    earlier = (earlier > cost) and earlier - cost or 0
end
