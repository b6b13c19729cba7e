--- section load

cost = amount or cost

--- section refund
