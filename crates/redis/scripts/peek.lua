-- What each of KEYS would be answered, and what it has. Nothing is written.
local p = parse(2)
local answers = { now }
for i = 1, #KEYS do
  local is_state, first, second = read(p, KEYS[i])
  local wait, left, reset = UNREADABLE, 0, 0
  if is_state then wait, left, reset = peek(p, first, second) end
  answers[3 * i - 1], answers[3 * i], answers[3 * i + 1] = wait, left, reset
end
return answers
