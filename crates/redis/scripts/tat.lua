-- gcra and token bucket. The state is the theoretical arrival time: whole ticks and a fraction, and
-- for gcra the rate that it was written under. It is stored as
--   "ticks"                      what a token bucket and an older version write,
--   "ticks fraction denominator" the same,
--   "ticks 0fraction rate"       gcra: the fraction is over the rate, the units of a period. An
--                                older version reads that as its own kind, to the last part.
-- A rate's period is part of the key's name, so the rate alone says what T a state was written
-- under. A state of another rate is read as a table: its fraction and its T, over its own rate.
local function parse(at)
  local p = {
    limit = tonumber(ARGV[at]), d = tonumber(ARGV[at + 1]),
    unit = tonumber(ARGV[at + 2]), unit_part = tonumber(ARGV[at + 3]),
    span = tonumber(ARGV[at + 4]), span_part = tonumber(ARGV[at + 5]),
    rate = tonumber(ARGV[at + 6]),
  }
  p.reach = now + p.span
  -- One unit in 1/d ticks, where the whole tolerance in 1/d ticks is exact.
  if p.span * p.d + p.span_part <= EXACT then p.parts = p.unit * p.d + p.unit_part end
  return p, at + 7
end

-- T under another rate. The period is a whole number of ticks, and d divides the rate.
local function other(p, rate, part)
  local period = p.unit * p.rate + p.unit_part * (p.rate / p.d)
  local unit = floor(period / rate)
  return { d = rate, unit = unit, unit_part = period - unit * rate, part = part }
end

local function read(p, key)
  local text = try('GET', key)
  if not text then return true end
  if type(text) ~= 'string' then return false end
  if #text < 17 and find(text, '^%d+$') then return true, tonumber(text), 0 end
  local whole, part, d = match(text, '^(%d+) (%d+) (%d+)$')
  local has_rate = part and find(part, '^0')
  whole, part, d = tonumber(whole), tonumber(part), tonumber(d)
  if not whole or whole > EXACT or d > EXACT or part >= d then return false end
  if has_rate and p.rate > 0 then
    if d ~= p.rate then return true, whole, other(p, d, part) end
    return true, whole, part / (p.rate / p.d)
  end
  if d ~= p.d and part > 0 then
    -- Over another denominator: what does not fit this one is rounded up.
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

-- How long units take to come back: ticks, and 1/d ticks. Ticks beyond 2^53 are not exact, but
-- they are beyond, as no lead is.
local function length(p, units)
  local carry, low = muldiv(units, p.unit_part, p.d)
  return units * p.unit + carry, low
end

-- The fewest units that take so many ticks and 1/d ticks to come back; of more than `most`, about
-- as many.
local function units_of(p, ticks, part, most)
  local function covers(units)
    local high, low = length(p, units)
    return high > ticks or (high == ticks and low >= part)
  end
  local units = floor((ticks + part / p.d) / (p.unit + p.unit_part / p.d))
  if units > most + 16 then return units end
  -- The doubles were near; now exactly.
  while units > 0 and covers(units - 1) do units = units - 1 end
  while not covers(units) do units = units + 1 end
  return units
end

-- How long until no more than so many units are lent of what another rate wrote.
local function wait_of(o, whole, units)
  local high, low = length(o, units)
  local ticks = whole - now - high
  if ticks < 0 then return 0 end
  return o.part > low and ticks + 1 or ticks
end

-- What another rate has lent, u = (whole - now) / T of it, is judged in units: this rate's are as
-- many. An admission writes them, rounded up, and the cost at this rate.
local function ask_other(p, whole, o, cost)
  local lent = units_of(o, whole - now, o.part, p.limit)
  local left, reset = p.limit - lent, o.part > 0 and whole + 1 or whole
  if left < 0 then left = 0 end
  if reset > EXACT then reset = EXACT end
  if cost > p.limit then return NEVER, left, reset end
  local wait = wait_of(o, whole, p.limit - cost)
  if wait > 0 then return wait, left, reset end
  local high, low = length(p, lent + cost)
  return ADMIT, left - cost, low > 0 and now + high + 1 or now + high, now + high, low
end

local function ask(p, whole, part, cost)
  if not whole or whole < now then whole, part = now, 0 end
  if type(part) == 'table' then return ask_other(p, whole, part, cost) end
  local wait, next_whole, next_part = judge(p, whole, part, cost)
  if wait == ADMIT then
    local left, reset = measure(p, next_whole, next_part)
    return ADMIT, left, reset, next_whole, next_part
  end
  return wait, measure(p, whole, part)
end

local function write(p, key, whole, part)
  local text
  if p.rate > 0 then
    text = part > 0 and format('%.0f 0%.0f %.0f', whole, part * (p.rate / p.d), p.rate)
      or format('%.0f 0 %.0f', whole, p.rate)
  else
    text = part > 0 and format('%.0f %.0f %.0f', whole, part, p.d) or format('%.0f', whole)
  end
  if is_real then
    call('SET', key, text, 'PXAT', ceil((part > 0 and whole + 1 or whole) / 1000) + KEPT)
  else
    call('SET', key, text)
  end
end
-- look
local function peek(p, whole, part)
  if not whole or whole < now then whole, part = now, 0 end
  if type(part) == 'table' then
    local wait, left, reset = ask_other(p, whole, part, 1)
    if wait == ADMIT then return ADMIT, left + 1, part.part > 0 and whole + 1 or whole end
    return wait, left, reset
  end
  return judge(p, whole, part, 1), measure(p, whole, part)
end

local function forecast_other(p, whole, o, cost)
  local _, left, full = peek(p, whole, o)
  if left == p.limit then return floor(left / cost), full, full end
  return floor(left / cost), now + wait_of(o, whole, p.limit - left - 1), full
end

local function forecast(p, whole, part, cost)
  if not whole or whole < now then whole, part = now, 0 end
  if type(part) == 'table' then return forecast_other(p, whole, part, cost) end
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
