-- How many requests of each cost would pass now, when more will, and when all. Nothing is written.
local p, costs = parse(2)
local answers = { now }
for i = 1, #KEYS do
  local is_state, first, second = read(p, KEYS[i])
  local spendable, soon, full = UNREADABLE, 0, 0
  if is_state then
    spendable, soon, full = forecast(p, first, second, tonumber(ARGV[costs + i - 1]))
  end
  answers[3 * i - 1], answers[3 * i], answers[3 * i + 1] = spendable, soon, full
end
return answers
