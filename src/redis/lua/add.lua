--- section load
--- section level

cost = amount

--- section add

return used
