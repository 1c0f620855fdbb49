-- Accounts of budgets. Each has three keys: a hash of its head, under 'a', and of what is known of
-- each lease, under the lease's sixteen bytes; the open leases by when they end; the ended ones by
-- when they are forgotten, those that nobody settled after all that were settled, EXPIRED_FROM
-- later. Those of one instant are in the order of their bytes. The sorted sets are read only when
-- something in them is due.
local pack, take, spread = struct.pack, struct.unpack, unpack
local max, min = math.max, math.min
-- Window; spent, reserved, debt; an instant before which no lease ends and none is forgotten; the
-- last that a lease is remembered, how long the keys are kept; how many leases are open, and ended.
local HEAD, HEAD_SIZE = '>I7I7I7I7I7I7I7I4I4', 57
-- Phase; window, unspent, charged, debited; time to live. If settled: phase; returned, debt.
local LEASE, LEASE_SIZE, RESULT, RESULT_SIZE = '>BI7I7I7I7I4', 33, '>BI7I7', 15
local OPEN, EXPIRED, SETTLED = 0, 1, 2
local LOOK, DEBIT, RESERVE, ABANDON = 0, 1, 2, 4
local NONE, SETTLED_NOW, SETTLED_BEFORE, UNKNOWN = 0, 1, 2, 3
local ENDED_KEPT, LOOK_AHEAD = 600000000, 64
local DEBT_MAX, DEBITED_MAX, CIVIL_WINDOWS_MAX = 2251799813685247, 4503599627370496, 200000
-- Leases that are heard of again and again need not have their keys' expiry set each time.
local SLACK, CHUNK, FORGOTTEN = 60000000, 1000, 256
-- Instants end at 2^52, so sums of both are exact; ends that lie past it never come. A version that
-- does not know of it forgets those that were settled first too.
local EXPIRED_FROM, BEFORE_EXPIRED = 4503599627370496, '(4503599627370496'
local SETTLED_LAST = '4503599627370495.5'
local act, lease, ttl = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

-- The ordinary case first, without all that the others need: a plain debit of one account which is
-- in its window, owes nothing, has something left and nothing due.
if #KEYS == 3 and act == DEBIT and lease == '' then
  local head = try('HGET', KEYS[1], 'a')
  if type(head) == 'string' and #head == HEAD_SIZE then
    local index, spent, reserved, debt, due, last, kept, open, ended = take(HEAD, head)
    local units, limit = tonumber(ARGV[5]), tonumber(ARGV[6])
    local p, first, second = { kind = tonumber(ARGV[7]) }, tonumber(ARGV[8]), tonumber(ARGV[9])
    p.period, p.phase, p.offset, p.shift = first, second, first, second
    if debt == 0 and spent + reserved < limit and now < due and index == index_of(p) then
      local finish = end_of(p, index)
      if kept >= finish or not is_real then
        spent = spent + units
        call('HSET', KEYS[1], 'a',
          pack(HEAD, index, spent, reserved, debt, due, last, kept, open, ended))
        return { now, ADMIT, finish, 0, spent, reserved, 0, open, finish, NONE, 0, 0 }
      end
    end
  end
end

local function instant(at) return format('%.0f', at) end
local EXPIRED_TEXT = instant(EXPIRED_FROM)

-- What is known of a lease; nothing if there is none, false if it is not readable.
local function known(text)
  if not text then return end
  if #text == RESULT_SIZE then
    local phase, returned, owed = take(RESULT, text)
    return phase == SETTLED and { phase = phase, unspent = 0, returned = returned, owed = owed }
  end
  if #text ~= LEASE_SIZE then return false end
  local l = {}
  l.phase, l.window, l.unspent, l.charged, l.debited, l.ttl = take(LEASE, text)
  return l.phase < SETTLED and l
end

local function told(l)
  if l.phase == SETTLED then return pack(RESULT, SETTLED, l.returned, l.owed) end
  return pack(LEASE, l.phase, l.window, l.unspent, l.charged, l.debited, l.ttl)
end

-- An account, its rules and what is known of the lease; nothing if it is not readable.
local function recall(i)
  local at = 5 + (i - 1) * 8
  local a = {
    key = KEYS[3 * i - 2], opens = KEYS[3 * i - 1], ends = KEYS[3 * i],
    units = tonumber(ARGV[at]), limit = tonumber(ARGV[at + 1]), kind = tonumber(ARGV[at + 2]),
    is_carried = ARGV[at + 5] == '1', open_max = tonumber(ARGV[at + 6]),
    ended_max = tonumber(ARGV[at + 7]), settlement = NONE, returned = 0, owed = 0,
  }
  local first, second = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  if a.kind == FIXED then a.period, a.phase = first, second
  else a.offset, a.shift = first, second end
  local head, text
  if lease == '' then
    head = try('HGET', a.key, 'a')
  else
    local both = try('HMGET', a.key, 'a', lease)
    if both.err then return end
    head, text = both[1], both[2]
  end
  if not head then
    a.index, a.spent, a.reserved, a.debt, a.due = 0, 0, 0, 0, EXACT
    a.last, a.kept, a.open, a.ended, a.open_before, a.ended_before = 0, 0, 0, 0, 0, 0
    return not text and a
  end
  if type(head) ~= 'string' or #head ~= HEAD_SIZE then return end
  a.is_there = true
  a.index, a.spent, a.reserved, a.debt, a.due, a.last, a.kept, a.open, a.ended = take(HEAD, head)
  a.open_before, a.ended_before = a.open, a.ended
  a.lease = known(text)
  return a.lease ~= false and a
end

local function keep_head(a)
  return pack(HEAD, a.index, a.spent, a.reserved, a.debt, a.due, a.last, a.kept, a.open, a.ended)
end

local function expire(a, key)
  if is_real then call('PEXPIREAT', key, instant(ceil(a.kept / 1000) + KEPT)) end
end

local function score_at(key, place)
  return tonumber(call('ZRANGE', key, place, place, 'WITHSCORES')[2] or EXACT)
end

-- Forgets so many of the ended leases, from a place on.
local function forget(a, from, count)
  if count <= 0 then return end
  call('HDEL', a.key, spread(call('ZRANGE', a.ends, from, from + count - 1)))
  call('ZREMRANGEBYRANK', a.ends, from, from + count - 1)
end

-- When so many and one of the leases that are not settled are forgotten, if nobody hears of them.
local function forgotten_at(a, place)
  local ends = {}
  local function add(key, from, offset)
    local found = call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, place + 1)
    for i = 2, #found, 2 do ends[#ends + 1] = tonumber(found[i]) + offset end
  end
  add(a.ends, EXPIRED_TEXT, -EXPIRED_FROM)
  add(a.opens, '-inf', ENDED_KEPT)
  table.sort(ends)
  return ends[place + 1]
end

-- Ends the leases whose time is over, as many as there are, and forgets those that have ended long
-- ago. False if what is there is no list of leases.
local function sweep(a)
  local finish, now_text = end_of(a, a.index), instant(now)
  local over = try('ZRANGEBYSCORE', a.opens, '-inf', now_text, 'WITHSCORES')
  if over.err or type(try('ZCARD', a.ends)) == 'table' then return false end
  for first = 1, #over, 2 * CHUNK do
    local leases, fields, scores = {}, {}, {}
    for i = first, first + 2 * CHUNK - 2, 2 do leases[#leases + 1] = over[i] end
    local texts = call('HMGET', a.key, spread(leases))
    for i, one in ipairs(leases) do
      local l, ended = known(texts[i]), tonumber(over[first + 2 * i - 1])
      if l and l.phase == OPEN then
        -- After the window's end there is nothing to give back to.
        if l.window == a.index and ended < finish then a.reserved = a.reserved - l.unspent end
        l.phase, l.unspent = EXPIRED, 0
        fields[#fields + 1], fields[#fields + 2] = one, told(l)
        scores[#scores + 1], scores[#scores + 2] = instant(EXPIRED_FROM + ended + ENDED_KEPT), one
      end
    end
    if #fields > 0 then
      call('HSET', a.key, spread(fields))
      call('ZADD', a.ends, spread(scores))
    end
  end
  if #over > 0 then call('ZREMRANGEBYSCORE', a.opens, '-inf', now_text) end
  -- Some at a time: the others are remembered for longer, and nobody has to wait.
  local count = min(call('ZCOUNT', a.ends, EXPIRED_TEXT, instant(EXPIRED_FROM + now)), FORGOTTEN)
  local settled = call('ZCOUNT', a.ends, '-inf', BEFORE_EXPIRED)
  forget(a, settled, count)
  forget(a, 0, min(call('ZCOUNT', a.ends, '-inf', now_text), FORGOTTEN - count))
  a.open, a.ended = call('ZCARD', a.opens), call('ZCARD', a.ends)
  a.open_before, a.ended_before = a.open, a.ended
  local first = call('ZRANGEBYSCORE', a.ends, EXPIRED_TEXT, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  a.due = min(score_at(a.opens, 0), score_at(a.ends, 0),
    first and tonumber(first) - EXPIRED_FROM or EXACT)
  if lease ~= '' then a.lease = known(call('HGET', a.key, lease)) end
  call('HSET', a.key, 'a', keep_head(a))
  if a.ended > 0 then expire(a, a.ends) end
  return a.lease ~= false
end

-- The debt that is left when the window ends with so much reserved.
local function debt_after(a, reserved)
  if not a.is_carried then return 0 end
  local spare = a.limit - (a.spent + reserved)
  if spare < 0 then spare = 0 end
  return a.debt > spare and a.debt - spare or 0
end

-- Brings an account to now.
local function advance(a)
  if now >= a.due and not sweep(a) then return false end
  local index = index_of(a)
  if index > a.index then
    -- What the window has to spare pays debt, and so do those that passed unused.
    local after, unused = debt_after(a, a.reserved), (index - a.index - 1) * a.limit
    a.debt = after > unused and after - unused or 0
    a.index, a.spent, a.reserved, a.is_changed = index, 0, 0, true
  end
  a.finish = end_of(a, a.index)
  return true
end

-- The end of the window so many after the present one, or the last instant there is.
local function end_after(a, windows)
  if windows == 0 then return a.finish end
  local finish = EXACT
  if a.kind == FIXED then
    finish = a.finish + a.period * windows
  elseif windows <= CIVIL_WINDOWS_MAX then
    finish = end_of(a, a.index + windows)
  end
  return finish < EXACT and finish or EXACT
end

-- Nothing that is waited for is past; if it were, it must not be taken for another outcome.
local function wait_until(at) return at > now and at - now or 0 end

-- Admits if so much is left, and otherwise says when it will be if nobody does anything.
local function if_left(a, need)
  local left = a.limit - (a.debt + a.spent + a.reserved)
  if left >= need then return ADMIT end
  if need > a.limit then return NEVER end
  local reserved = a.reserved
  if a.open > 0 then
    local first = call('ZRANGE', a.opens, 0, LOOK_AHEAD - 1, 'WITHSCORES')
    local leases = {}
    for i = 1, #first, 2 do leases[#leases + 1] = first[i] end
    local texts = call('HMGET', a.key, spread(leases))
    for i = 1, #leases do
      local ends = tonumber(first[2 * i])
      if ends >= a.finish then break end
      local l = known(texts[i])
      if l and l.window == a.index then
        left, reserved = left + l.unspent, reserved - l.unspent
      end
      -- Of those that nobody looks at, nothing is known: not even when they end.
      local is_last = i == LOOK_AHEAD and a.open > LOOK_AHEAD
      if left >= need or is_last then return wait_until(ends) end
    end
  end
  -- The first window whose debt leaves enough room.
  local debt, room = debt_after(a, reserved), a.limit - need
  return wait_until(end_after(a, debt > room and ceil((debt - room) / a.limit) or 0))
end

local function judge_reserve(a)
  if a.lease then return a.lease.phase == OPEN and ADMIT or NEVER end
  local wait = if_left(a, a.units > 1 and a.units or 1)
  if wait == NEVER then return wait end
  -- Whichever comes later: what is left by then, or a place. A smaller bound may have left several
  -- too many.
  if a.open >= a.open_max then
    wait = max(wait, wait_until(score_at(a.opens, a.open - a.open_max)))
  end
  local most = a.open_max + a.ended_max
  if a.open + a.ended >= most then
    local expired = call('ZCOUNT', a.ends, EXPIRED_TEXT, '+inf')
    local place = a.open + expired - most
    if place >= 0 then wait = max(wait, wait_until(forgotten_at(a, place))) end
  end
  return wait
end

local function judge_debit(a)
  local own = 0
  if a.lease then
    -- Its cost has been told in full.
    if a.lease.phase == SETTLED then return NEVER end
    own = a.lease.unspent
  end
  return a.units <= own and ADMIT or if_left(a, 1)
end

-- A lease of an account is open, or remembered, until then; with GT only if that is later.
local function list(a, key, at, how)
  local score = instant(a.lease.phase == EXPIRED and EXPIRED_FROM + at or at)
  if a.lease.phase == SETTLED and at >= EXPIRED_FROM then score = SETTLED_LAST end
  call('ZADD', key, how, score, lease)
  if at < a.due then a.due = at end
  if key == a.opens then at = at + ENDED_KEPT end
  if at > a.last then a.last = at end
  a.is_changed = true
end

-- A lease was heard of: an open one lives on, one that has ended is remembered longer.
local function hear(a)
  if a.lease.phase == OPEN then
    list(a, a.opens, now + a.lease.ttl, 'GT')
  else
    list(a, a.ends, now + ENDED_KEPT, 'GT')
  end
end

local function commit_reserve(a)
  if a.lease then return hear(a) end
  -- Nothing of an account that is gone is left.
  if not a.is_there then call('DEL', a.opens, a.ends) end
  a.reserved, a.open = a.reserved + a.units, a.open + 1
  a.lease = {
    phase = OPEN, window = a.index, unspent = a.units, charged = 0, debited = 0, ttl = ttl,
  }
  list(a, a.opens, now + ttl, 'GT')
end

local function commit_debit(a)
  local l, units = a.lease, a.units
  local own = l and (units < l.unspent and units or l.unspent) or 0
  local beyond = units - own
  a.spent = a.spent + beyond
  if not l then
    if units > 0 then a.is_changed = true end
    return
  end
  if l.window == a.index then a.reserved, a.spent = a.reserved - own, a.spent + own end
  l.unspent, l.charged = l.unspent - own, l.charged + own
  if beyond > 0 then
    -- What was charged to an earlier window cannot come back.
    l.charged = (l.window == a.index and l.charged or 0) + beyond
    l.window = a.index
  end
  l.debited = l.debited + units
  if l.debited > DEBITED_MAX then l.debited = DEBITED_MAX end
  hear(a)
end

local function commit_settle(a)
  local l = a.lease
  if not l then a.settlement = UNKNOWN return end
  if l.phase == SETTLED then
    a.settlement, a.returned, a.owed = SETTLED_BEFORE, l.returned, l.owed
    return
  end
  local actual = act == ABANDON and l.debited or a.units
  local more = actual > l.debited and actual - l.debited or 0
  -- What was produced beyond the debits was reserved, or else it is owed.
  local own = more < l.unspent and more or l.unspent
  if l.window == a.index then
    -- Those of earlier windows were too many, as far as that can be: what comes back here was
    -- certainly not served here.
    local back = l.charged > actual and l.charged - actual or 0
    a.reserved, a.spent = a.reserved - l.unspent, a.spent + own - back
    a.returned = l.unspent - own + back
  end
  a.owed = more - own
  if a.owed > DEBT_MAX - a.debt then a.owed = DEBT_MAX - a.debt end
  a.debt, a.settlement = a.debt + a.owed, SETTLED_NOW
  if l.phase == OPEN then
    call('ZREM', a.opens, lease)
    a.open, a.ended = a.open - 1, a.ended + 1
  end
  a.lease = { phase = SETTLED, unspent = 0, returned = a.returned, owed = a.owed }
  -- From now on, also if the clock was set back: it need not be later than before.
  list(a, a.ends, now + ENDED_KEPT, 'CH')
  if a.ended <= a.ended_max then return end
  -- The oldest that were settled before, some at a time.
  local gone, count = {}, min(a.ended - a.ended_max, FORGOTTEN)
  local settled = call('ZRANGEBYSCORE', a.ends, '-inf', BEFORE_EXPIRED, 'LIMIT', 0, count + 1)
  for _, one in ipairs(settled) do
    if one ~= lease and #gone < count then gone[#gone + 1] = one end
  end
  if #gone > 0 then
    call('HDEL', a.key, spread(gone))
    call('ZREM', a.ends, spread(gone))
    a.ended = a.ended - #gone
  end
end

-- Writes what has changed. Keys are kept until the account is the same as none; one that always was
-- is not written.
local function write(a)
  local used = a.spent + a.reserved + a.debt
  if not a.is_there and used + a.open + a.ended == 0 then return end
  local idle = used > 0 and a.reset or 0
  local is_by_lease = a.last > idle
  if is_by_lease then idle = a.last end
  local is_longer = is_real and idle > a.kept
  if not is_longer and not a.is_changed then return end
  if is_longer then a.kept = is_by_lease and idle + SLACK or idle end
  if a.lease and a.is_changed then
    call('HSET', a.key, 'a', keep_head(a), lease, told(a.lease))
  else
    call('HSET', a.key, 'a', keep_head(a))
  end
  if is_longer then expire(a, a.key) end
  -- A list that was empty has no expiry yet.
  if a.open > 0 and (is_longer or a.open_before == 0) then expire(a, a.opens) end
  if a.ended > 0 and (is_longer or a.ended_before == 0) then expire(a, a.ends) end
end

local accounts, waits, is_admitted = {}, {}, true
for i = 1, #KEYS / 3 do
  local a = recall(i)
  if not a then return { now, UNREADABLE } end
  accounts[i] = a
end
for _, a in ipairs(accounts) do
  if not advance(a) then return { now, UNREADABLE } end
end
for i, a in ipairs(accounts) do
  local wait = ADMIT
  if act == LOOK then wait = if_left(a, 1)
  elseif act == DEBIT then wait = judge_debit(a)
  elseif act == RESERVE then wait = judge_reserve(a) end
  waits[i] = wait
  if wait ~= ADMIT then is_admitted = false end
end
local answers = { now }
for i, a in ipairs(accounts) do
  if act > RESERVE then commit_settle(a)
  elseif is_admitted and act == DEBIT then commit_debit(a)
  elseif is_admitted and act == RESERVE then commit_reserve(a) end
  local debt = debt_after(a, a.reserved)
  a.reset = end_after(a, ceil(debt / a.limit))
  write(a)
  local n = #answers
  answers[n + 1], answers[n + 2] = waits[i], a.reset
  answers[n + 3] = a.lease and a.lease.unspent or 0
  answers[n + 4], answers[n + 5], answers[n + 6] = a.spent, a.reserved, a.debt
  answers[n + 7], answers[n + 8] = a.open, a.finish
  answers[n + 9], answers[n + 10], answers[n + 11] = a.settlement, a.returned, a.owed
end
return answers
