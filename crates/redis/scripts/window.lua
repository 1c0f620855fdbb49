-- Fixed windows and calendar quotas. The state is the latest window that admitted anything and what
-- it spent, stored as "index count".
-- cadence
local FIXED, DAY, WEEK = 0, 1, 2
local DAY_US = 86400000000

-- Counts from 1 March of year 0, so that the leap day is the last of its year.
local function year_and_month(day)
  day = day + 719468
  local era = floor(day / 146097)
  day = day - era * 146097
  local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
  day = day - (365 * year + floor(year / 4) - floor(year / 100))
  local month = floor((5 * day + 2) / 153)
  year = era * 400 + year
  if month < 10 then return year, month + 3 end
  return year + 1, month - 9
end

-- The first day of a month, 0 for 1 January 1970.
local function first_day(year, month)
  if month > 2 then month = month - 3 else year, month = year - 1, month + 9 end
  local era = floor(year / 400)
  year = year - era * 400
  local day = 365 * year + floor(year / 4) - floor(year / 100) + floor((153 * month + 2) / 5)
  return era * 146097 + day - 719468
end

-- The index of the window that now lies in.
local function index_of(p)
  if p.kind == FIXED then return floor((now + p.period - p.phase) / p.period) end
  local day = floor((now + p.offset) / DAY_US)
  if p.kind == DAY then return day + 1 end
  if p.kind == WEEK then return floor((day + 14 - p.shift) / 7) end
  local year, month = year_and_month(day)
  return (year - 1969) * 12 + month - 1
end

-- The first instant after a window.
local function end_of(p, index)
  local finish
  if p.kind == FIXED then
    finish = index * p.period + p.phase
  elseif p.kind == DAY then
    finish = index * DAY_US - p.offset
  elseif p.kind == WEEK then
    finish = ((index + 1) * 7 - 14 + p.shift) * DAY_US - p.offset
  else
    local after = index + 1
    finish = first_day(1969 + floor(after / 12), after % 12 + 1) * DAY_US - p.offset
  end
  if finish < 0 then return 0 end
  return finish <= EXACT and finish or EXACT
end

-- count
local function parse(at)
  local p = { limit = tonumber(ARGV[at]), kind = tonumber(ARGV[at + 1]) }
  local first, second = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  if p.kind == FIXED then p.period, p.phase = first, second
  else p.offset, p.shift = first, second end
  p.index = index_of(p)
  p.finish = end_of(p, p.index)
  return p, at + 4
end

local function read(p, key)
  local text = try('GET', key)
  if not text then return true end
  if type(text) ~= 'string' then return false end
  local index, count = match(text, '^(%d+) (%d+)$')
  index, count = tonumber(index), tonumber(count)
  if not index or index > EXACT or count > EXACT then return false end
  return true, index, count
end

-- The window to judge at, never an earlier one than has admitted; its count, and its end.
local function judged(p, index, count)
  if not index or index < p.index then return p.index, 0, p.finish end
  return index, count, index == p.index and p.finish or end_of(p, index)
end

local function ask(p, index, count, cost)
  local finish
  index, count, finish = judged(p, index, count)
  local left = p.limit - count
  if left < 0 then left = 0 end
  if cost > p.limit then return NEVER, left, finish end
  if cost <= left then return ADMIT, left - cost, finish, index, count + cost end
  return finish > now and finish - now or 0, left, finish
end

local function write(p, key, index, count)
  local text = format('%.0f %.0f', index, count)
  if is_real then
    local idle = index == p.index and p.finish or end_of(p, index)
    call('SET', key, text, 'PXAT', ceil(idle / 1000) + KEPT)
  else
    call('SET', key, text)
  end
end
-- look
local function peek(p, index, count)
  local wait, left, finish = ask(p, index, count, 1)
  return wait, wait == ADMIT and left + 1 or left, finish
end

local function forecast(p, index, count, cost)
  local finish
  index, count, finish = judged(p, index, count)
  local left = p.limit - count
  return left > 0 and floor(left / cost) or 0, finish, finish
end
