-- An algorithm as a function of a key and an argument, which gives back what was
-- charged, or looks and returns what it has found.

if op == 'r' then
    acts[number] = function(key, argument)

        --- refunded
    end

else
    acts[number] = function(key, argument)

        --- looked

        return {
            allowed = allowed, rebase = rebase, cost = cost, verdict = verdict,

            charge = function(cost)

                --- charged
            end,

            punish = function(cost)

                --- punished
            end
        }
    end
end
