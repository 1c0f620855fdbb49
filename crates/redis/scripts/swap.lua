-- Changes a cell if it holds what is expected: whether anything, what, whether anything new, what,
-- and the millisecond from which it may go. Otherwise says what the cell holds.
local bytes = try('GET', KEYS[1])
if bytes and type(bytes) ~= 'string' then return { now, UNREADABLE } end
local expected = ARGV[2] == '1' and ARGV[3] or false
if bytes ~= expected then
  if bytes then return { now, 1, bytes } end
  return { now, 0 }
end
if ARGV[4] == '0' then
  call('DEL', KEYS[1])
elseif is_real then
  call('SET', KEYS[1], ARGV[5], 'PXAT', ARGV[6] + KEPT)
else
  call('SET', KEYS[1], ARGV[5])
end
return { now, 2 }
