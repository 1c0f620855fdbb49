-- Sliding log. The state is a list: a base, then "instant:total", oldest first. A total counts the
-- units up to and including its entry, and the base those before the first: so what lies between
-- two entries is a difference, and whatever is looked for is found by halving.
-- A log has at most UNITS_MAX units; totals go round at WRAP, so that none outgrows its digits.
local WRAP, UNITS_MAX = 1000000000, 100000

local function parse(at)
  return { limit = tonumber(ARGV[at]), window = tonumber(ARGV[at + 1]) }, at + 2
end

-- An entry's instant, and the units up to it since the base; nothing if it is no entry.
local function split(s, text)
  local at, total = match(text, '^(%d+):(%d+)$')
  at, total = tonumber(at), tonumber(total)
  if not at or at > HORIZON or total >= WRAP then return end
  return at, (total - s.base) % WRAP
end

-- Entry i, counted from 1.
local function entry(s, i)
  local at, upto = split(s, s.first[i + 1] or call('LINDEX', s.key, i))
  if at and at <= s.latest and upto <= s.units then return at, upto end
end

-- The list with what has left the window set apart: `gone` entries of `gone_units` units.
local function read(p, key)
  local first = try('LRANGE', key, 0, 15)
  if first.err then return false end
  if #first == 0 then return true end
  local s = { key = key, first = first, count = #first - 1, gone = 0, gone_units = 0 }
  local last = first[#first]
  if #first == 16 then s.count, last = call('LLEN', key) - 1, call('LINDEX', key, -1) end
  s.base = match(first[1], '^%d+$') and tonumber(first[1])
  if s.count < 1 or not s.base or s.base >= WRAP then return false end
  s.latest, s.units = split(s, last)
  if not s.latest or s.units > UNITS_MAX then return false end
  s.at = s.latest > now and s.latest or now
  local at, upto = entry(s, 1)
  if not at then return false end
  if at + p.window > s.at then
    s.oldest = at
  elseif s.latest + p.window <= s.at then
    s.gone, s.gone_units = s.count, s.units
  else
    -- Entry `gone` has left, and entry `live` has not.
    local live = s.count
    s.gone, s.gone_units, s.oldest = 1, upto, s.latest
    while live - s.gone > 1 do
      local middle = floor((s.gone + live) / 2)
      at, upto = entry(s, middle)
      if not at then return false end
      if at + p.window > s.at then
        live, s.oldest = middle, at
      else
        s.gone, s.gone_units = middle, upto
      end
    end
  end
  return true, s
end

-- When `units` of the live ones will have left the window; nothing if the list is not one.
local function frees_at(p, s, units)
  -- Up to entry `few` there are fewer, and up to entry `enough` there are not.
  local few, enough, leaves = s.gone, s.count, s.latest
  while enough - few > 1 do
    local middle = floor((few + enough) / 2)
    local at, upto = entry(s, middle)
    if not at then return end
    if upto - s.gone_units >= units then
      enough, leaves = middle, at
    else
      few = middle
    end
  end
  return leaves + p.window
end

local function ask(p, s, _, cost)
  s = s or { at = now, units = 0, gone = 0, gone_units = 0, count = 0 }
  local live = s.units - s.gone_units
  -- A limit that was lowered since may be exceeded already.
  local left = live < p.limit and p.limit - live or 0
  local reset = (s.oldest or s.at) + p.window
  if cost > p.limit then return NEVER, left, reset end
  if cost <= left then return ADMIT, left - cost, reset, s, cost end
  local frees = frees_at(p, s, live + cost - p.limit)
  if not frees then return UNREADABLE, 0, 0 end
  return frees > now and frees - now or 0, left, reset
end

local function write(p, key, s, cost)
  local at = format('%.0f', s.at)
  if s.gone == s.count then
    -- All have left, or there was none: the log begins.
    if s.count > 0 then call('DEL', key) end
    call('RPUSH', key, 0, at .. ':' .. cost)
  else
    if s.gone > 0 then
      -- The last entry that has left becomes the base, and what was before it goes.
      call('LSET', key, s.gone, format('%.0f', (s.base + s.gone_units) % WRAP))
      call('LTRIM', key, s.gone, -1)
    end
    local new = at .. ':' .. format('%.0f', (s.base + s.units + cost) % WRAP)
    if s.latest == s.at then
      call('LSET', key, -1, new)
    else
      call('RPUSH', key, new)
    end
  end
  if is_real then call('PEXPIREAT', key, ceil((s.at + p.window) / 1000) + KEPT) end
end
-- look
local function peek(p, s)
  local wait, left, reset = ask(p, s, nil, 1)
  return wait, wait == ADMIT and left + 1 or left, reset
end

local function forecast(p, s, _, cost)
  if not s then return floor(p.limit / cost), now, now end
  local live = s.units - s.gone_units
  local left = live < p.limit and p.limit - live or 0
  if not s.oldest then return floor(left / cost), s.at, s.at end
  return floor(left / cost), s.oldest + p.window, s.latest + p.window
end
