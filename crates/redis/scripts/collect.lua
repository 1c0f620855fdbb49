-- An owner is here: its secret, for how long, and which leases have ended. It is told its notes.
local finish = here_until()
if finish == false then return { now, UNREADABLE } end
if not finish then call('DEL', KEYS[2], KEYS[3]) end
finish = now + tonumber(ARGV[3])
if finish > EXACT then finish = EXACT end
call('HSET', KEYS[1], 'secret', ARGV[2], 'until', format('%.0f', finish))
for i = 4, #ARGV do finished(ARGV[i]) end
local notes, answers = call('HGETALL', KEYS[2]), { now }
call('DEL', KEYS[2])
for i = 1, #notes, 2 do
  local told, at = match(notes[i + 1], '^(%d):(%d+)$')
  local age = now - tonumber(at)
  local place = #answers
  answers[place + 1], answers[place + 2] = tonumber(notes[i]), tonumber(told)
  answers[place + 3] = age > 0 and age or 0
end
expire(finish)
return answers
