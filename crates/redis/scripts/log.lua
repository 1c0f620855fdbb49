-- Sliding log. The state is a list: the sum of all units, then "instant:units", oldest first.
local function parse(at)
  return { limit = tonumber(ARGV[at]), window = tonumber(ARGV[at + 1]) }, at + 2
end

local function split(text)
  local at, units = match(text, '^(%d+):(%d+)$')
  return tonumber(at), tonumber(units)
end

-- Entry i, counted from 1: its instant and units; nothing after the last. Lists are long, so they
-- are read in stretches, forward only.
local function entry(s, i)
  local text = s.stretch[i - s.before]
  if not text and i <= s.count then
    s.stretch, s.before = call('LRANGE', s.key, i, i + 511), i - 1
    text = s.stretch[1]
  end
  if not text then return end
  return split(text)
end

-- The list with what has left the window set apart: `gone` entries of `gone_units` units.
local function read(p, key)
  local stretch = try('LRANGE', key, 0, 15)
  if stretch.err then return false end
  if #stretch == 0 then return true end
  local s = { key = key, stretch = stretch, before = -1, count = #stretch - 1 }
  local last = stretch[#stretch]
  if #stretch == 16 then s.count, last = call('LLEN', key) - 1, call('LINDEX', key, -1) end
  s.units = match(stretch[1], '^%d+$') and tonumber(stretch[1])
  s.latest, s.latest_units = split(last)
  if s.count < 1 or not s.units or not s.latest or s.latest > HORIZON then return false end
  s.at = s.latest > now and s.latest or now
  s.gone, s.gone_units = 0, 0
  for i = 1, s.count do
    local at, units = entry(s, i)
    if not at then return false end
    if at + p.window > s.at then
      s.oldest = at
      break
    end
    s.gone, s.gone_units = i, s.gone_units + units
  end
  if s.gone_units > s.units then return false end
  return true, s
end

-- When `units` of the live ones will have left the window; nothing if the list is not one.
local function frees_at(p, s, units)
  local freed = 0
  for i = s.gone + 1, s.count do
    local at, more = entry(s, i)
    if not at then return end
    freed = freed + more
    if freed >= units then return at + p.window end
  end
  return s.at + p.window
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
  if s.count == 0 then
    call('RPUSH', key, cost, at .. ':' .. cost)
  else
    -- The last entry that has left becomes the sum, and what was before it goes.
    call('LSET', key, s.gone, format('%.0f', s.units - s.gone_units + cost))
    if s.gone > 0 then call('LTRIM', key, s.gone, -1) end
    if s.latest == s.at then
      call('LSET', key, -1, at .. ':' .. format('%.0f', s.latest_units + cost))
    else
      call('RPUSH', key, at .. ':' .. cost)
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
