-- Forgets each of KEYS, whatever is there, and says whether there was anything.
local answers = { now }
for i = 1, #KEYS do answers[i + 1] = call('DEL', KEYS[i]) end
return answers
