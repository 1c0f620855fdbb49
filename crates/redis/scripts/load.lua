-- What a cell holds.
local bytes = try('GET', KEYS[1])
if not bytes then return { now, 0 } end
if type(bytes) ~= 'string' then return { now, UNREADABLE } end
return { now, 1, bytes }
