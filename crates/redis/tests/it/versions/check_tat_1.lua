-- The clock, and the numbers that every part shares. Every number here is a whole one below 2^53,
-- where doubles are exact: so are their sums, floor(a / b), ceil(a / b) and a % b.
-- Numbers are never joined with `..`, which keeps fourteen digits only.
local EXACT, HORIZON = 9007199254740991, 4503599627370495
local floor, ceil, format = math.floor, math.ceil, string.format
local match, find = string.match, string.find
local call, try = redis.call, redis.pcall
-- A wait of at least 0 is how long; these are the other outcomes.
local ADMIT, NEVER, UNREADABLE = -1, -2, -3
-- A key stays for this many milliseconds after it is idle, so that a clock which is set back by
-- less than that finds it again.
local KEPT = 1000
-- Tests pass an instant, and then nothing expires: a time of one's own and a real expiry do not mix.
local is_real, now = ARGV[1] == '', nil
if is_real then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(ARGV[1])
end
if now > HORIZON then now = HORIZON end
-- The ordinary checks of gcra and token bucket, without a function of our own: each is made anew at
-- every call. Everything is counted in 1/d ticks from now. What is not ordinary is left to the
-- functions that follow: another denominator, a lead beyond the tolerance, numbers too large.
local keys, argv = KEYS, ARGV
local limit, d, span, span_part = argv[2] + 0, argv[3] + 0, argv[6] + 0, argv[7] + 0
local unit, tolerance = argv[4] * d + argv[5], span * d + span_part
local first, count, answers = 1, #keys, { now, 0, 0, 0 }
while first <= count and tolerance <= EXACT do
  local key, cost = keys[first], argv[first + 7] + 0
  local text = try('GET', key)
  local whole, part = now, 0
  if text then
    if type(text) ~= 'string' then break end
    if find(text, '^%d+$') then
      whole = text + 0
    else
      local ticks, fraction, over = match(text, '^(%d+) (%d+) (%d+)$')
      if not ticks or over + 0 ~= d or fraction + 0 >= d then break end
      whole, part = ticks + 0, fraction + 0
    end
    if whole < now then whole, part = now, 0 end
  end
  local lead = (whole - now) * d + part
  -- Also where the product is not exact: it is far above the tolerance then.
  if lead > tolerance then break end
  local room, wait = tolerance - lead, NEVER
  if cost <= limit then
    local more = cost * unit
    if more <= room then
      wait, room = ADMIT, room - more
      lead = lead + more
      part = lead % d
      whole = now + (lead - part) / d
      local idle = part > 0 and whole + 1 or whole
      local new = part > 0 and format('%.0f %.0f %.0f', whole, part, d) or whole
      if is_real then
        call('SET', key, new, 'PXAT', ceil(idle / 1000) + KEPT)
      else
        call('SET', key, new)
      end
    else
      wait = ceil((more - room) / d)
    end
  end
  local left, place = floor(room / unit), 3 * first
  answers[place - 1] = wait
  answers[place] = left < limit and left or limit
  answers[place + 1] = part > 0 and whole + 1 or whole
  first = first + 1
end
if first > count then return answers end
-- The quotient and the remainder of a * b / c, exact also where the product is not. The quotient
-- must be below 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product <= EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  -- a digit by digit, the highest first, with b taken modulo c.
  local whole = floor(b / c)
  b = b - whole * c
  local base = c < 1099511627776 and 4096 or 2
  local place = 1
  while place * base <= a do place = place * base end
  local quotient, rest = 0, 0
  while place >= 1 do
    local digit = floor(a / place)
    a = a - digit * place
    if base == 4096 then
      -- Both below 2^40 * 2^12, and so their sum below 2^53.
      local sum = rest * 4096 + digit * b
      local more = floor(sum / c)
      quotient, rest = quotient * 4096 + more + digit * whole, sum - more * c
    else
      -- Twice the rest may not be exact: what is missing to c is subtracted instead.
      quotient = quotient + quotient
      if rest >= c - rest then
        quotient, rest = quotient + 1, rest - (c - rest)
      else
        rest = rest + rest
      end
      if digit == 1 then
        quotient = quotient + whole
        if rest >= c - b then
          quotient, rest = quotient + 1, rest - (c - b)
        else
          rest = rest + b
        end
      end
    end
    place = place / base
  end
  return quotient, rest
end
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
