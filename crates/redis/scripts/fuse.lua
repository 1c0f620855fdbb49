-- Limits and budgets in one step. KEYS: three for each account, as book.lua has them, then one for
-- each limit. ARGV: as book.lua has them, then as all.lua has them; at the end whether a denial by a
-- budget leaves the limits charged, and how many accounts there are.
local count, is_per_axis = tonumber(ARGV[#ARGV]), ARGV[#ARGV - 1] == '1'
local before, at, is_admitted = 3 * count, 5 + 8 * count, true
local limits, answers = {}, { now, 0 }
for i = 1, #KEYS - before do
  local of, cost = family(tonumber(ARGV[at])), tonumber(ARGV[at + 1])
  local l = { of = of, key = KEYS[before + i] }
  l.p, at = of.parse(at + 2)
  local is_state
  is_state, l.first, l.second = of.read(l.p, l.key)
  if not is_state then return { now, UNREADABLE } end
  l.wait, l.left, l.reset, l.new, l.more = of.ask(l.p, l.first, l.second, cost)
  if l.wait == UNREADABLE then return { now, UNREADABLE } end
  is_admitted = is_admitted and l.wait == ADMIT
  limits[i] = l
end
-- The limits were only read so far. So the budgets are charged first, if all limits admit, and
-- nothing has to be given back if they deny.
local booked, is_charged = {}, is_admitted
if is_admitted and count > 0 then
  local keys = {}
  for i = 1, before do keys[i] = KEYS[i] end
  booked = book(keys)
  if booked[2] == UNREADABLE then return booked end
  local is_spent = true
  for i = 2, #booked, 11 do is_spent = is_spent and booked[i] == ADMIT end
  is_charged = is_spent or is_per_axis
  if is_spent or is_per_axis and #limits > 0 then answers[2] = 1 end
elseif is_admitted then
  answers[2] = 1
end
for _, l in ipairs(limits) do
  if is_charged then
    l.of.write(l.p, l.key, l.new, l.more)
  elseif l.wait == ADMIT then
    l.wait, l.left, l.reset = l.of.peek(l.p, l.first, l.second)
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = l.wait, l.left, l.reset
end
for i = 2, #booked do answers[#answers + 1] = booked[i] end
return answers
