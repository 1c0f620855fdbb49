-- Sliding window of buckets. The state is the latest instant admitted at and the counts of its
-- bucket and those before it, stored as "instant,count,count,…" with nothing written for zero.
local function parse(at)
  local p = {
    limit = tonumber(ARGV[at]), window = tonumber(ARGV[at + 1]), buckets = tonumber(ARGV[at + 2]),
  }
  return p, at + 3
end

-- The bucket of an instant, and how far into it, in 1/S ticks of which a bucket has `window`.
local function place(p, at)
  local window = p.window
  local turns = floor(at / window)
  local parts = (at - turns * window) * p.buckets
  local bucket = floor(parts / window)
  return turns * p.buckets + bucket, parts - bucket * window
end

-- The first instant at or after `parts` 1/S ticks from the start of a bucket.
local function instant(p, index, parts)
  local turns = floor(index / p.buckets)
  local rest = (index - turns * p.buckets) * p.window + parts
  local at = turns * p.window + ceil(rest / p.buckets)
  return at <= EXACT and at or EXACT
end

local function read(p, key)
  local text = try('GET', key)
  if not text then return true end
  if type(text) ~= 'string' then return false end
  local latest, rest = match(text, '^(%d+)([,%d]+)$')
  latest = tonumber(latest)
  if not latest or latest > HORIZON then return false end
  local counts, n = {}, 0
  for count in string.gmatch(rest, ',(%d*)') do
    n = n + 1
    counts[n] = count == '' and 0 or tonumber(count)
    if counts[n] > EXACT then return false end
  end
  if n == 0 or n > p.buckets + 1 then return false end
  return true, latest, counts
end

-- The instant to judge at, never earlier than one admitted at, and what the ring shows there: the
-- bucket, how far into it, how many buckets it turned, units in the newest S and in the one before.
local function view(p, latest, counts)
  local at = now
  if latest and latest > now then at = latest end
  local index, elapsed = place(p, at)
  if not latest then return { at = at, index = index, elapsed = elapsed, turned = 0,
                              full = 0, oldest = 0 } end
  local turned = index - place(p, latest)
  local full, last = 0, p.buckets - turned
  if last > #counts then last = #counts end
  for age = 1, last do full = full + counts[age] end
  return { at = at, index = index, elapsed = elapsed, turned = turned, full = full,
           oldest = counts[p.buckets - turned + 1] or 0 }
end

-- Whole units that fit. What the oldest bucket still weighs is rounded up.
local function left_of(p, v)
  local room = p.limit - v.full
  if v.oldest > 0 then
    local aged, rest = muldiv(v.oldest, p.window - v.elapsed, p.window)
    room = room - aged
    if rest > 0 then room = room - 1 end
  end
  return room > 0 and room or 0
end

-- The earliest instant at which `cost` fits, where it does not yet.
local function fits_at(p, v, counts, cost)
  local index, full, oldest, turned = v.index, v.full, v.oldest, v.turned
  local target = p.limit - cost
  while full > target do
    index, turned = index + 1, turned + 1
    oldest = counts and counts[p.buckets - turned + 1] or 0
    full = full - oldest
  end
  local excess = oldest - (target - full)
  if excess <= 0 then return instant(p, index, 0) end
  local elapsed, rest = muldiv(excess, p.window, oldest)
  if rest > 0 then elapsed = elapsed + 1 end
  return instant(p, index, elapsed)
end

local function charged(p, v, counts, cost)
  local new, length = { cost }, 1
  for age = 1, counts and #counts or 0 do
    local later = age + v.turned
    if later > p.buckets + 1 then break end
    new[later] = (new[later] or 0) + counts[age]
    length = later
  end
  for age = 1, length do new[age] = new[age] or 0 end
  return new
end

local function ask(p, latest, counts, cost)
  local v = view(p, latest, counts)
  local left, reset = left_of(p, v), instant(p, v.index + 1 + p.buckets, 0)
  if cost > p.limit then return NEVER, left, reset end
  if cost <= left then return ADMIT, left - cost, reset, v.at, charged(p, v, counts, cost) end
  local wait = fits_at(p, v, counts, cost) - now
  return wait > 0 and wait or 0, left, reset
end

local function write(p, key, at, counts)
  local texts, last = { format('%.0f', at) }, 1
  for age = 1, #counts do
    texts[age + 1] = counts[age] > 0 and format('%.0f', counts[age]) or ''
    if counts[age] > 0 then last = age + 1 end
  end
  local text = table.concat(texts, ',', 1, last)
  if is_real then
    local idle = instant(p, place(p, at) + 1 + p.buckets, 0)
    call('SET', key, text, 'PXAT', ceil(idle / 1000) + KEPT)
  else
    call('SET', key, text)
  end
end
-- look
local function peek(p, latest, counts)
  local wait, left, reset = ask(p, latest, counts, 1)
  return wait, wait == ADMIT and left + 1 or left, reset
end

local function forecast(p, latest, counts, cost)
  local v = view(p, latest, counts)
  return floor(left_of(p, v) / cost), instant(p, v.index + 1, 0),
    instant(p, v.index + 1 + p.buckets, 0)
end
