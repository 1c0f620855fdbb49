-- What waits for one owner. KEYS[1] is a hash of its secret and until when it is here, KEYS[2] one
-- of the notes by lease, KEYS[3] the ended leases by when they ended. A lease is sixteen digits, so
-- that those of one instant are in their order.
local ABSENT, NOTES_MAX, ENDED_MAX, ENDED_KEPT = -4, 10000, 10000, 30000000

-- Until when the owner is here; nothing if it is not, false if the key is not ours.
local function here_until()
  local finish = try('HGET', KEYS[1], 'until')
  if type(finish) == 'table' then return false end
  finish = tonumber(finish or 0)
  if finish and finish > now then return finish end
end

-- Remembers an end, and forgets what is too old, then the oldest, if there are too many.
local ended_count
local function finished(lease)
  if not ended_count then
    call('ZREMRANGEBYSCORE', KEYS[3], '-inf', format('%.0f', now - ENDED_KEPT))
    ended_count = call('ZCARD', KEYS[3])
  end
  ended_count = ended_count + call('ZADD', KEYS[3], format('%.0f', now), lease)
  if ended_count > ENDED_MAX then
    call('ZREMRANGEBYRANK', KEYS[3], 0, ended_count - ENDED_MAX - 1)
    ended_count = ENDED_MAX
  end
end

-- Everything of an owner goes when it is not here any more.
local function expire(finish)
  if not is_real then return end
  local at = format('%.0f', ceil(finish / 1000) + KEPT)
  for i = 1, 3 do call('PEXPIREAT', KEYS[i], at) end
end
