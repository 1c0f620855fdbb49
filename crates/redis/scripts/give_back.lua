-- Takes back what a holder did not spend: units, the instant of the grant, and the end of what
-- paid. KEYS[1] is the limit's state; KEYS[2] says that the lease has been given back; KEYS[3] is
-- when the key was reset.
local GIVE_BACK_MAX, REMEMBERED = 120000000, 180000
local p, at = parse(2)
local units, granted_at = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
local since, reset_at = now - granted_at, tonumber(try('GET', KEYS[3]) or -1)
local is_state, one, two = read(p, KEYS[1])
if not is_state then return { now, UNREADABLE } end
-- Before anything is restored: if only one of both is done, it is this.
local is_first
if is_real then
  is_first = call('SET', KEYS[2], 1, 'NX', 'PX', REMEMBERED)
else
  is_first = call('SET', KEYS[2], 1, 'NX')
end
if not is_first or since > GIVE_BACK_MAX then return { now, 0 } end
-- The reset has forgotten the grant.
if not reset_at or granted_at <= reset_at then return { now, 0 } end
if since < 0 then since = 0 end
local restored, new, more = restore(p, one, two, units, since, tonumber(ARGV[at + 2]))
if restored > 0 then write(p, KEYS[1], new, more) end
return { now, restored }
