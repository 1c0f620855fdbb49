-- Several limits, of which the first that admits is charged. Per limit: its family, its cost, its
-- parameters. The same key may occur twice, so each is read again at its turn.
local limits, at = {}, 2
for i = 1, #KEYS do
  local l = { of = family(tonumber(ARGV[at])), cost = tonumber(ARGV[at + 1]) }
  l.p, at = l.of.parse(at + 2)
  -- Before anything is charged: what is no state must not be found afterwards.
  local is_state, first, second = l.of.read(l.p, KEYS[i])
  if not is_state or l.of.ask(l.p, first, second, l.cost) == UNREADABLE then
    return { now, UNREADABLE }
  end
  limits[i] = l
end
local answers, is_charged = { now }, false
for i = 1, #KEYS do
  local l = limits[i]
  local _, first, second = l.of.read(l.p, KEYS[i])
  local wait, left, reset, new, more = l.of.ask(l.p, first, second, l.cost)
  if wait == ADMIT and is_charged then
    wait, left, reset = l.of.peek(l.p, first, second)
  elseif wait == ADMIT then
    l.of.write(l.p, KEYS[i], new, more)
    is_charged = true
  end
  answers[3 * i - 1], answers[3 * i], answers[3 * i + 1] = wait, left, reset
end
return answers
