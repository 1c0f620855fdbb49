-- Many checks at one instant: KEYS and as many costs. Repeated keys count in order.
local p, costs = parse(2)
local answers, n = { now }, 1
for i = 1, #KEYS do
  local key = KEYS[i]
  local is_state, first, second = read(p, key)
  local wait, left, reset = UNREADABLE, 0, 0
  if is_state then
    local new, more
    wait, left, reset, new, more = ask(p, first, second, tonumber(ARGV[costs + i - 1]))
    if wait == ADMIT then write(p, key, new, more) end
  end
  answers[n + 1], answers[n + 2], answers[n + 3] = wait, left, reset
  n = n + 3
end
return answers
