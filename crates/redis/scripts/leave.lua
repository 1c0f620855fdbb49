-- A node leaves: id, incarnation, sequence, and what it has in flight.
local id, incarnation, sequence = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local flight = tonumber(ARGV[5])
local f = recall(KEYS[1])
if f == false then return { now, UNREADABLE } end
if not f then return { now, 0 } end
local at, is_there = place(f, id, incarnation)
if not is_there then return { now, 0 } end
local _, _, _, _, _, _, generation, last = unpack(RECORD, f.blob, at)
if sequence <= last then return { now, 0 } end
-- Its work may go on for as long as a permit may be held; a tick more, because the clock may have
-- read almost a tick too little just now.
local numbers
if flight > 0 and f.handoff == 1 and f.hold > 0 then
  local kept = until_after(until_after(now, f.hold), 1)
  numbers = pack(RECORD, kept, now, NO_VOTE, flight, 0, 0, generation, sequence, incarnation)
end
keep(f, KEYS[1], at, true, numbers, id, false)
return { now, 1 }
