-- Forgets a key, whatever is there, and says whether there was anything. KEYS[2] keeps the instant
-- for as long as leases can be given back: what was granted until then restores nothing. Without
-- keys the answer is the instant alone.
local REMEMBERED = 180000
if not KEYS[1] then return { now } end
local found = call('DEL', KEYS[1])
if KEYS[2] then
  local before = tonumber(try('GET', KEYS[2]) or 0)
  local latest = format('%.0f', before and before > now and before or now)
  if is_real then
    call('SET', KEYS[2], latest, 'PX', REMEMBERED)
  else
    call('SET', KEYS[2], latest)
  end
end
return { now, found }
