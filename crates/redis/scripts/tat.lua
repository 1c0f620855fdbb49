-- gcra and token bucket. The state is the theoretical arrival time: whole ticks, and a fraction
-- over the denominator d. It is stored as the ticks alone, which Redis keeps as an integer, or as
-- "ticks fraction denominator".
local function parse(at)
  local p = {
    limit = tonumber(ARGV[at]), d = tonumber(ARGV[at + 1]),
    unit = tonumber(ARGV[at + 2]), unit_part = tonumber(ARGV[at + 3]),
    span = tonumber(ARGV[at + 4]), span_part = tonumber(ARGV[at + 5]),
  }
  p.reach = now + p.span
  -- One unit in 1/d ticks, where the whole tolerance in 1/d ticks is exact.
  if p.span * p.d + p.span_part <= EXACT then p.parts = p.unit * p.d + p.unit_part end
  return p, at + 6
end

local function read(p, key)
  local text = try('GET', key)
  if not text then return true end
  if type(text) ~= 'string' then return false end
  if #text < 17 and find(text, '^%d+$') then return true, tonumber(text), 0 end
  local whole, part, d = match(text, '^(%d+) (%d+) (%d+)$')
  whole, part, d = tonumber(whole), tonumber(part), tonumber(d)
  if not whole or whole > EXACT or d > EXACT or part >= d then return false end
  if d ~= p.d and part > 0 then
    -- Written by another limit: what does not fit the new denominator is rounded up.
    local rest
    part, rest = muldiv(part, p.d, d)
    if rest > 0 then part = part + 1 end
    if part >= p.d then whole, part = whole + 1, 0 end
  end
  return true, whole, part
end

-- What remains while the arrival time is at (whole, part), and when all of it is back.
local function measure(p, whole, part)
  local reset = part > 0 and whole + 1 or whole
  if reset > EXACT then reset = EXACT end
  local room, room_part = p.reach - whole, p.span_part - part
  if room_part < 0 then room, room_part = room - 1, room_part + p.d end
  if room < 0 then return 0, reset end
  local parts, d = p.parts, p.d
  if parts then
    local left = floor((room * d + room_part) / parts)
    return left < p.limit and left or p.limit, reset
  end
  local unit, unit_part = p.unit, p.unit_part
  local left = floor((room + room_part / d) / (unit + unit_part / d))
  if left > p.limit then left = p.limit end
  -- The doubles were near; now exactly. One more unit than fits is one too many.
  local function fits(units)
    local low = units * unit_part
    local carry = floor(low / d)
    local high = units * unit + carry
    return high < room or (high == room and low - carry * d <= room_part)
  end
  while left > 0 and not fits(left) do left = left - 1 end
  while left < p.limit and fits(left + 1) do left = left + 1 end
  return left, reset
end

-- The arrival time, moved by `cost` units, and whether it lies within reach.
local function judge(p, whole, part, cost)
  if cost > p.limit then return NEVER end
  local d, move, move_part = p.d, cost * p.unit, cost * p.unit_part
  if move_part >= d then
    local carry = floor(move_part / d)
    move, move_part = move + carry, move_part - carry * d
  end
  -- Two fractions may add up to more than is exact.
  local next_part
  if part >= d - move_part then
    move, next_part = move + 1, part - (d - move_part)
  else
    next_part = part + move_part
  end
  local next_whole, reach = whole + move, p.reach
  if next_whole < reach or (next_whole == reach and next_part <= p.span_part) then
    return ADMIT, next_whole, next_part
  end
  local wait = whole - reach + move
  return next_part > p.span_part and wait + 1 or wait
end

local function ask(p, whole, part, cost)
  if not whole or whole < now then whole, part = now, 0 end
  local wait, next_whole, next_part = judge(p, whole, part, cost)
  if wait == ADMIT then
    local left, reset = measure(p, next_whole, next_part)
    return ADMIT, left, reset, next_whole, next_part
  end
  return wait, measure(p, whole, part)
end

local function write(p, key, whole, part)
  local text = part > 0 and format('%.0f %.0f %.0f', whole, part, p.d) or format('%.0f', whole)
  if is_real then
    call('SET', key, text, 'PXAT', ceil((part > 0 and whole + 1 or whole) / 1000) + KEPT)
  else
    call('SET', key, text)
  end
end
-- look
local function peek(p, whole, part)
  if not whole or whole < now then whole, part = now, 0 end
  return judge(p, whole, part, 1), measure(p, whole, part)
end

local function forecast(p, whole, part, cost)
  if not whole or whole < now then whole, part = now, 0 end
  local left, full = measure(p, whole, part)
  if left == p.limit then return floor(left / cost), full, full end
  -- The arrival time after one unit more than fits, less the tolerance.
  local d, units = p.d, left + 1
  local low = units * p.unit_part
  local carry = floor(low / d)
  local more, more_part = units * p.unit + carry, low - carry * d
  if part >= d - more_part then
    more, more_part = more + 1, part - (d - more_part)
  else
    more_part = part + more_part
  end
  local soon = whole - p.span + more
  if more_part > p.span_part then soon = soon + 1 end
  return floor(left / cost), soon <= EXACT and soon or EXACT, full
end
