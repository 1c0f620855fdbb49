-- The quotient and the remainder of a * b / c, exact also where the product is not. The quotient
-- must be below 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product <= EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  -- a digit by digit, the highest first, with b taken modulo c.
  local whole = floor(b / c)
  b = b - whole * c
  local base = c < 1099511627776 and 4096 or 2
  local place = 1
  while place * base <= a do place = place * base end
  local quotient, rest = 0, 0
  while place >= 1 do
    local digit = floor(a / place)
    a = a - digit * place
    if base == 4096 then
      -- Both below 2^40 * 2^12, and so their sum below 2^53.
      local sum = rest * 4096 + digit * b
      local more = floor(sum / c)
      quotient, rest = quotient * 4096 + more + digit * whole, sum - more * c
    else
      -- Twice the rest may not be exact: what is missing to c is subtracted instead.
      quotient = quotient + quotient
      if rest >= c - rest then
        quotient, rest = quotient + 1, rest - (c - rest)
      else
        rest = rest + rest
      end
      if digit == 1 then
        quotient = quotient + whole
        if rest >= c - b then
          quotient, rest = quotient + 1, rest - (c - b)
        else
          rest = rest + b
        end
      end
    end
    place = place / base
  end
  return quotient, rest
end
