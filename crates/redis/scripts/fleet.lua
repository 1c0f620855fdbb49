-- A fleet is one string: a head, and then a record per node, all of one size, in the order of ids
-- and incarnations. So a node is found by halving, ranks need no sorting, and a report that adds
-- and removes nobody writes two pieces of the string.
local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte
local rep, concat, sqrt = string.rep, table.concat, math.sqrt
-- Version, aggregate, split, handoff, bytes of an id; time to live, hold, epoch, quiet until,
-- latest, generation; limit; life.
local HEAD, HEAD_SIZE, VERSION = '>BBBBBI8I8I8I8I8I8I4Bc0', 58, 1
-- Kept until, live until, vote, in flight, share, unacknowledged; generation, sequence,
-- incarnation; and then the id, filled up with zeros, which no id has in it.
local RECORD, WALKED, NUMBERED = '>I8I8I4I4I4I4I8I8I8', '>I8I8I4I4I4I4', 56
local NO_VOTE, REMEMBERED = 4294967295, 86400000000

local function until_after(at, span)
  local ends = at + span
  return ends < EXACT and ends or EXACT
end

-- Nothing, and an id's width.
local function empty(f, width)
  f.blob, f.first, f.count, f.width, f.size = '', 1, 0, width, NUMBERED + width
end

-- What is remembered; nothing if there is none, false if it is no fleet.
local function recall(key)
  local blob = try('GET', key)
  if not blob then return end
  if type(blob) ~= 'string' or #blob < HEAD_SIZE or byte(blob) ~= VERSION then return false end
  if #blob < HEAD_SIZE + byte(blob, HEAD_SIZE) then return false end
  local f, _ = { blob = blob }, nil
  _, f.aggregate, f.split, f.handoff, f.width, f.ttl, f.hold, f.epoch, f.quiet, f.latest,
    f.generation, f.limit, f.life, f.first = unpack(HEAD, blob)
  f.size = NUMBERED + f.width
  f.count = (#blob - f.first + 1) / f.size
  if f.count ~= floor(f.count) then return false end
  -- If the clock stepped back, every end steps back with it: no time passed.
  f.back = f.latest > now and f.latest - now or 0
  f.quiet, f.latest = f.quiet > f.back and f.quiet - f.back or 0, now
  return f
end

-- Where a node's record is or would be, and whether it is there. The order is that of bytes; that
-- of Lua's own strings depends on where the server runs.
local function place(f, id, incarnation)
  local low, high = 0, f.count
  while low < high do
    local middle = floor((low + high) / 2)
    local at = f.first + middle * f.size
    local order, i = 0, 0
    while order == 0 and (i < f.width or i < #id) do
      local other = i < f.width and byte(f.blob, at + NUMBERED + i) or 0
      i = i + 1
      order = (byte(id, i) or 0) - other
    end
    if order == 0 then order = incarnation - unpack('>I8', f.blob, at + NUMBERED - 8) end
    if order == 0 then return at, true end
    if order > 0 then low = middle + 1 else high = middle end
  end
  return f.first + low * f.size, false
end

local function ends(f, at)
  local kept, live = unpack('>I8I8', f.blob, at)
  if f.back == 0 then return kept, live end
  return kept > f.back and kept - f.back or 0, live > f.back and live - f.back or 0
end

-- Writes the head and one node's record, or all without that. Other records are gone through only
-- if they change.
local function keep(f, key, at, is_there, numbers, id, is_pruned)
  local width = #id > f.width and #id or f.width
  local head = pack(HEAD, VERSION, f.aggregate, f.split, f.handoff, width, f.ttl, f.hold, f.epoch,
    f.quiet, f.latest, f.generation, f.limit, #f.life, f.life)
  local own = numbers and concat({ numbers, id, rep('\0', width - #id) }) or ''
  local is_other_same = f.back == 0 and not is_pruned and width == f.width
  if is_other_same and is_there and numbers then
    call('SETRANGE', key, 0, head)
    call('SETRANGE', key, at - 1, numbers)
  elseif is_other_same then
    local rest = sub(f.blob, is_there and at + f.size or at)
    call('SET', key, concat({ head, sub(f.blob, f.first, at - 1), own, rest }))
  else
    local parts, filling = { head }, rep('\0', width - f.width)
    for other = f.first, #f.blob, f.size do
      if other == at then parts[#parts + 1] = own end
      if other ~= at or not is_there then
        local kept, live = ends(f, other)
        if kept > now or not is_pruned then
          parts[#parts + 1] = pack('>I8I8', kept, live)
          parts[#parts + 1] = sub(f.blob, other + 16, other + f.size - 1)
          parts[#parts + 1] = filling
        end
      end
    end
    if at > #f.blob then parts[#parts + 1] = own end
    call('SET', key, concat(parts))
  end
  if is_real then
    local kept = f.ttl + f.hold
    if kept < REMEMBERED then kept = REMEMBERED end
    local last = until_after(now, kept)
    -- It may have to be quiet for as long as rules from before kept a node.
    if last < f.quiet then last = f.quiet end
    call('PEXPIREAT', key, format('%.0f', ceil(last / 1000) + KEPT))
  end
end
