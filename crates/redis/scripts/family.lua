-- The families by number, each made when it is first asked for.
local made = {}
local function family(number)
  local of = made[number]
  if not of then
    of = FAMILIES[number]()
    made[number] = of
  end
  return of
end
