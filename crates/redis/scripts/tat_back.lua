-- The most units, up to the limit, that come back within so many ticks and 1/d ticks.
local function units_within(p, ticks, part)
  local function fits(units)
    local high, low = length(p, units)
    return high < ticks or (high == ticks and low <= part)
  end
  local most = floor((ticks + part / p.d) / (p.unit + p.unit_part / p.d))
  if most > p.limit then most = p.limit end
  -- The doubles were near; now exactly.
  while most > 0 and not fits(most) do most = most - 1 end
  while most < p.limit and fits(most + 1) do most = most + 1 end
  return most
end

-- What has come back by itself since the grant is not restored: as if it had never been granted.
-- Nor is anything that another rate's numbers have counted since.
local function restore(p, whole, part, units, since)
  if not whole or whole < now or type(part) == 'table' then return 0 end
  local came = units_within(p, since, 0)
  local high, low = length(p, came)
  if high < since or low > 0 then came = came + 1 end
  units = (units < p.limit and units or p.limit) - came
  if units <= 0 then return 0 end
  local lent = units_within(p, whole - now, part)
  if units > lent then units = lent end
  high, low = length(p, units)
  whole, part = whole - high, part - low
  if part < 0 then whole, part = whole - 1, part + p.d end
  return units, whole, part
end
