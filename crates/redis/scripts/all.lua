-- Several limits, charged all or not at all. Per limit: its family, its cost, its parameters. No
-- two of KEYS are the same.
local limits, at, is_admitted = {}, 2, true
for i = 1, #KEYS do
  local of, cost = family(tonumber(ARGV[at])), tonumber(ARGV[at + 1])
  local l = { of = of }
  l.p, at = of.parse(at + 2)
  local is_state
  is_state, l.first, l.second = of.read(l.p, KEYS[i])
  if not is_state then return { now, UNREADABLE } end
  l.wait, l.left, l.reset, l.new, l.more = of.ask(l.p, l.first, l.second, cost)
  if l.wait == UNREADABLE then return { now, UNREADABLE } end
  is_admitted = is_admitted and l.wait == ADMIT
  limits[i] = l
end
local answers = { now }
for i = 1, #KEYS do
  local l = limits[i]
  if is_admitted then
    l.of.write(l.p, KEYS[i], l.new, l.more)
  elseif l.wait == ADMIT then
    l.wait, l.left, l.reset = l.of.peek(l.p, l.first, l.second)
  end
  answers[3 * i - 1], answers[3 * i], answers[3 * i + 1] = l.wait, l.left, l.reset
end
return answers
