-- A node reports, and is told its share. The life of the store, if a test says it; who: id and
-- incarnation; sequence, local limit, whether it is sampled, in flight, epoch, applied generation,
-- what a new epoch is to be called; the rules: aggregate, split, handoff, time to live, hold.
local STALE, TAKEN, OTHER_RULES, FULL, NODES_MAX = 0, 1, -4, -5, 1024
local life, id = ARGV[2], ARGV[3]
local incarnation, sequence = tonumber(ARGV[4]), tonumber(ARGV[5])
local local_limit, is_sampled, flight = tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
local aggregate, split, handoff = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local ttl, hold = tonumber(ARGV[15]), tonumber(ARGV[16])
if life == '' then
  -- A server that was restarted has another first part, one that was promoted another second:
  -- either may have forgotten what was granted.
  local run = match(call('INFO', 'server'), 'run_id:(%x+)')
  local promoted = match(call('INFO', 'replication'), 'master_replid2:(%x+)')
  if not run or not promoted then
    return redis.error_reply('ERR fleets need run_id and master_replid2 in what INFO says')
  end
  life = concat({ run, promoted })
end

local key = KEYS[1]
local f = recall(key)
if f == false then return { now, UNREADABLE, 0, 0, 0, 0, 0, 0, 0 } end
if not f or f.life ~= life then
  -- Whoever was granted something before may still hold to it, and nobody here knows; what was
  -- granted in another life may have been granted by rules that last longer. Generations start
  -- where none was before, should a second copy of a report found an epoch of the same name.
  local quiet = handoff == 1 and until_after(until_after(now, ttl), hold) or now
  if f and f.handoff == 1 then
    local longer = until_after(until_after(now, f.ttl), f.hold)
    if longer > quiet then quiet = longer end
  end
  f = {
    aggregate = aggregate, split = split, handoff = handoff, ttl = ttl, hold = hold,
    epoch = tonumber(ARGV[11]), quiet = quiet, latest = now, back = 0, generation = now,
    limit = f and f.limit or local_limit, life = life,
  }
  empty(f, #id)
end
local at, is_there = place(f, id, incarnation)
local share, generation, unacked, last = 0, 0, 0, -1
if is_there then
  local _
  _, _, _, _, share, unacked, generation, last = unpack(RECORD, f.blob, at)
end

-- The others: how many are kept, how many of those come before this one, and what is kept for
-- them; how many are live, and how many of those come before this one; what each of them wants, in
-- order, and how many have no place to spare; the votes, and how many of them are below the limit,
-- or not above it.
local others, others_before, reserved, withheld, ended, ended_reserve = 0, 0, 0, 0, 0, 0
local nodes, before, hungry, hungry_before = 0, 0, 0, 0
local wants, wanted = {}, 0
local votes, voters, below, upto = {}, 0, 0, 0
local blob, back, is_handed, limit = f.blob, f.back, f.handoff == 1, f.limit
local is_by_demand = split == 1
-- A few more than it uses, as that varies; a quarter more than it has, if it uses all.
local function want(in_flight, has)
  if in_flight < has then return in_flight + 1 + floor(sqrt(in_flight) / 2) end
  return has + (has < 8 and 1 or floor(has / 4))
end
for other = f.first, #blob, f.size do
  if other ~= at or not is_there then
    local kept, live, vote, in_flight, shared, high = unpack(WALKED, blob, other)
    if back > 0 then kept, live = ends(f, other) end
    local reserve = is_handed and high or shared
    if in_flight > reserve then reserve = in_flight end
    if kept <= now then
      ended, ended_reserve = ended + 1, ended_reserve + reserve
    else
      others, reserved = others + 1, reserved + reserve
      if other < at then others_before = others_before + 1 end
      if live <= now then
        withheld = withheld + reserve
      else
        nodes = nodes + 1
        if other < at then before = before + 1 end
        if vote ~= NO_VOTE then
          voters = voters + 1
          votes[voters] = vote
          if vote < limit then below = below + 1 end
          if vote <= limit then upto = upto + 1 end
        end
        if is_by_demand then
          local wish = want(in_flight, shared)
          wants[nodes], wanted = wish, wanted + wish
          if in_flight >= shared then
            hungry = hungry + 1
            if other < at then hungry_before = hungry_before + 1 end
          end
        end
      end
    end
  end
end

local function told(code, fair)
  if withheld > 4294967295 then withheld = 4294967295 end
  return { now, code, share, generation, f.epoch, f.limit, nodes, fair, withheld }
end
local function own_reserve()
  local granted = f.handoff == 1 and unacked or share
  return granted > flight and granted or flight
end

if is_there and sequence <= last then
  -- Nothing is forgotten for it, and it is told of itself as it was.
  local _, live = ends(f, at)
  local _, _, _, was = unpack(WALKED, blob, at)
  flight = was
  withheld = withheld + ended_reserve
  if live > now then nodes = nodes + 1 else withheld = withheld + own_reserve() end
  return told(STALE, share)
end
if f.aggregate ~= aggregate or f.split ~= split or f.handoff ~= handoff or f.ttl ~= ttl
  or f.hold ~= hold then
  if others > 0 or is_there and ends(f, at) > now then
    return { now, OTHER_RULES, f.aggregate, f.split, f.handoff, f.ttl, f.hold, 0, 0 }
  end
  f.aggregate, f.split, f.handoff, f.ttl, f.hold = aggregate, split, handoff, ttl, hold
  empty(f, #id)
  at, is_there, share, generation, unacked = 1, false, 0, 0, 0
end
if not is_there and others >= NODES_MAX then return { now, FULL, 0, 0, 0, 0, 0, 0, 0 } end
if tonumber(ARGV[9]) == f.epoch and tonumber(ARGV[10]) >= generation then unacked = share end

local live = until_after(now, ttl)
local kept = handoff == 1 and until_after(live, hold) or live
local is_live, is_hungry = live > now, flight >= share
if is_live then
  nodes = nodes + 1
  if is_sampled then
    voters = voters + 1
    votes[voters] = local_limit
    if local_limit < limit then below = below + 1 end
    if local_limit <= limit then upto = upto + 1 end
  end
  if is_hungry then hungry = hungry + 1 end
end
if voters > 0 then
  local place = aggregate == 1 and 0 or floor((voters - 1) / 2)
  -- Most reports leave the limit where it is, and then nothing needs to be sorted.
  if below > place or upto <= place then
    table.sort(votes)
    f.limit = votes[place + 1]
  end
end

-- The same for each, the remainder to the first.
local function part(whole, count, rank)
  if count == 0 then count = 1 end
  local rest = whole % count
  return (whole - rest) / count + (is_live and rank < rest and 1 or 0)
end
-- What this one gets if wants are filled from the least up, each at most to an equal part of what
-- is left. None is sorted: whoever wants no more than an equal part of all that is left gets it,
-- and then of the others again. The rest get that part, and the last of them one more.
local function filled(own)
  local left, count, rest = f.limit, nodes, wants
  repeat
    local level = floor(left / count)
    if own <= level then return own end
    local over, over_count = {}, 0
    for i = 1, #rest do
      local wish = rest[i]
      if wish <= level then
        left = left - wish
      else
        over_count = over_count + 1
        over[over_count] = wish
      end
    end
    local is_level = over_count + 1 == count
    rest, count = over, over_count + 1
  until is_level
  local level, lower = floor(left / count), 0
  for i = 1, #wants do
    local wish = wants[i]
    if wish > level and (wish < own or wish == own and i <= before) then lower = lower + 1 end
  end
  return level + (lower >= count - left % count and 1 or 0)
end
local fair = part(f.limit, nodes, before)
if is_by_demand then
  local own = is_live and want(flight, share) or 0
  wanted = wanted + own
  local spare = wanted < f.limit and f.limit - wanted or 0
  fair = wanted <= f.limit and own or is_live and filled(own) or 0
  if is_hungry then
    fair = fair + part(spare, hungry, hungry_before)
    if fair < 1 then fair = 1 end
  end
end
-- No more than all others leave, or than it has already of an equal part among all that are
-- remembered: one that is not heard may come back for its own.
local most, has = reserved < f.limit and f.limit - reserved or 0, share
local over = f.limit % (others + 1)
local own_part = (f.limit - over) / (others + 1) + (others_before < over and 1 or 0)
if has > own_part then has = own_part end
if most < has then most = has end
local new = fair < most and fair or most
if now < f.quiet then new, fair = 0, 0 end
if new ~= share then
  f.generation = f.generation + 1
  share, generation = new, f.generation
end
if share > unacked then unacked = share end
if not is_live then withheld = withheld + own_reserve() end
local numbers = pack(RECORD, kept, live, is_sampled and local_limit or NO_VOTE, flight, share,
  unacked, generation, sequence, incarnation)
keep(f, key, at, is_there, numbers, id, ended > 0)
return told(TAKEN, fair)
