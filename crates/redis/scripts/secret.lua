-- What an owner signs with, if it is here.
local finish = here_until()
if finish == false then return { now, UNREADABLE } end
if not finish then return { now, 0 } end
return { now, 1, call('HGET', KEYS[1], 'secret') }
