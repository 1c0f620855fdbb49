-- Many checks at one instant: KEYS and as many costs. Repeated keys count in order.
local p, costs = parse(2)
for i = first, #KEYS do
  local key, place = KEYS[i], 3 * i
  local is_state, one, two = read(p, key)
  local wait, left, reset = UNREADABLE, 0, 0
  if is_state then
    local new, more
    wait, left, reset, new, more = ask(p, one, two, tonumber(ARGV[costs + i - 1]))
    if wait == ADMIT then write(p, key, new, more) end
  end
  answers[place - 1], answers[place], answers[place + 1] = wait, left, reset
end
return answers
