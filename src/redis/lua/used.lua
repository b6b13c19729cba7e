--- section load
--- section level

return used
