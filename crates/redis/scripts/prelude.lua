-- The clock, and the numbers that every part shares. Every number here is a whole one below 2^53,
-- where doubles are exact: so are their sums, floor(a / b), ceil(a / b) and a % b.
-- Numbers are never joined with `..`, which keeps fourteen digits only.
local EXACT, HORIZON = 9007199254740991, 4503599627370495
local floor, ceil, format = math.floor, math.ceil, string.format
local match, find = string.match, string.find
local call, try = redis.call, redis.pcall
-- A wait of at least 0 is how long; these are the other outcomes.
local ADMIT, NEVER, UNREADABLE = -1, -2, -3
-- A key stays for this many milliseconds after it is idle, so that a clock which is set back by
-- less than that finds it again.
local KEPT = 1000
-- Tests pass an instant, and then nothing expires: a time of one's own and a real expiry do not mix.
local is_real, now = ARGV[1] == '', nil
if is_real then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(ARGV[1])
end
if now > HORIZON then now = HORIZON end
