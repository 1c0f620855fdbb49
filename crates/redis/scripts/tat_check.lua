-- The ordinary checks of gcra and token bucket, without a function of our own: each is made anew at
-- every call. Everything is counted in 1/d ticks from now. What is not ordinary is left to the
-- functions that follow: another rate, a lead beyond the tolerance, numbers too large.
local keys, argv = KEYS, ARGV
local limit, d, span, span_part = argv[2] + 0, argv[3] + 0, argv[6] + 0, argv[7] + 0
local rate, has_rate = argv[8], argv[8] ~= '0'
local unit, tolerance = argv[4] * d + argv[5], span * d + span_part
local first, count, answers = 1, #keys, { now, 0, 0, 0 }
while first <= count and tolerance <= EXACT do
  local key, cost = keys[first], argv[first + 8] + 0
  local text = try('GET', key)
  local whole, part = now, 0
  if text then
    if type(text) ~= 'string' then break end
    local ticks, fraction, over
    if has_rate then ticks, fraction, over = match(text, '^(%d+) 0(%d*) (%d+)$') end
    if over and over == rate then
      whole = ticks + 0
      if fraction ~= '' then part = fraction / (rate / d) end
      if part >= d then break end
    elseif find(text, '^%d+$') then
      whole = text + 0
    elseif over then
      break
    else
      ticks, fraction, over = match(text, '^(%d+) (%d+) (%d+)$')
      if not ticks or over + 0 ~= d or fraction + 0 >= d then break end
      whole, part = ticks + 0, fraction + 0
    end
    if whole < now then whole, part = now, 0 end
  end
  local lead = (whole - now) * d + part
  -- Also where the product is not exact: it is far above the tolerance then.
  if lead > tolerance then break end
  local room, wait = tolerance - lead, NEVER
  if cost <= limit then
    local more = cost * unit
    if more <= room then
      wait, room = ADMIT, room - more
      lead = lead + more
      part = lead % d
      whole = now + (lead - part) / d
      local idle = part > 0 and whole + 1 or whole
      local new = whole
      if has_rate and format('%d', 4294967296) == '4294967296' then
        -- Twice as fast where a C long has 64 bits.
        new = part > 0 and format('%d 0%d %s', whole, part * (rate / d), rate)
          or format('%d 0 %s', whole, rate)
      elseif has_rate then
        new = part > 0 and format('%.0f 0%.0f %s', whole, part * (rate / d), rate)
          or format('%.0f 0 %s', whole, rate)
      elseif part > 0 then
        new = format('%.0f %.0f %.0f', whole, part, d)
      end
      if is_real then
        call('SET', key, new, 'PXAT', ceil(idle / 1000) + KEPT)
      else
        call('SET', key, new)
      end
    else
      wait = ceil((more - room) / d)
    end
  end
  local left, place = floor(room / unit), 3 * first
  answers[place - 1] = wait
  answers[place] = left < limit and left or limit
  answers[place + 1] = part > 0 and whole + 1 or whole
  first = first + 1
end
if first > count then return answers end
