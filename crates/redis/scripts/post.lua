-- Leaves notes: as many pairs of a lease and what was told about it.
local LEFT, ENDED, FULL, BEAT = 0, 1, 2, '0'
local finish = here_until()
if finish == false then return { now, UNREADABLE } end
if not finish then return { now, ABSENT } end
local answers, note_count = { now }, call('HLEN', KEYS[2])
for i = 2, #ARGV, 2 do
  local lease, told = ARGV[i], ARGV[i + 1]
  local ended = call('ZSCORE', KEYS[3], lease)
  local posted = LEFT
  if ended and now < tonumber(ended) + ENDED_KEPT then
    posted = ENDED
  elseif note_count >= NOTES_MAX and call('HEXISTS', KEYS[2], lease) == 0 then
    posted = FULL
  else
    local added = call('HSET', KEYS[2], lease, format('%s:%.0f', told, now))
    note_count = note_count + added
    if told ~= BEAT then finished(lease) end
  end
  answers[#answers + 1] = posted
end
expire(finish)
return answers
