-- Grants a part of one key's limit: what is needed, the least that helps, what is wanted, and how
-- long the last answer took. What is granted is charged as a check is, and kept in the same way.
local p, at = parse(2)
local need, least = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
local want, trip = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
local key = KEYS[1]
local is_state, one, two = read(p, key)
if not is_state then return { now, UNREADABLE, 0, 0, 0 } end
local wait, left, reset = peek(p, one, two)
-- What a window pays for must outlive four round trips, or there is no time to use it.
if p.finish and reset - now < 4 * trip then want = need end
local give = want > need and want or need
if give > left then give = left end
if left < least then give = 0 end
local missing = need > 0 and need or 1
if give > 0 then
  wait, left, reset, one, two = ask(p, one, two, give)
  write(p, key, one, two)
  missing = need - give
end
-- Who got nothing is told when there is something again.
wait = missing > 0 and ask(p, one, two, missing) or ADMIT
return { now, wait, left, reset, give }
