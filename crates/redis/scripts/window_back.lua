-- Only the window that paid takes back, and no more than it has spent.
local function restore(p, index, count, units, _, paid_until)
  if not index then return 0 end
  local finish
  index, count, finish = judged(p, index, count)
  if finish ~= paid_until then return 0 end
  if units > count then units = count end
  return units, index, count - units
end
