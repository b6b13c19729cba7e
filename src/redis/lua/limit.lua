-- Decides limit i and those before it: all limits of a request are one
-- decision.  The limits are looked at from the last to the first; when it is
-- known whether all of them allow the request, they are charged from the first
-- to the last.
--
-- The first round looks and chooses the verb, which is what is done to the
-- state.  Another round follows if the state was changed after the look.

local verb, again, result, before

repeat
    --- section load
    --- section level
    --- section look

    again = false

    if not verb or verb == 'look' or (verb == 'next' and not allowed) then
        result = verdict
    end

    if not verb then
        admitted = admitted and allowed

        if i > 1 then
            --- require decide

            admitted, before = decide(i - 1, admitted)
        end

        if admitted then
            verb = 'charge'

        elseif string.byte(argument, 4) % 2 == 1 then

            -- this limit counts refused requests, too

            verb = allowed and 'charge' or 'punish'

        elseif rebase then

            -- a state that the clock left in the future must not stay there

            verb = 'rebase'
        end

        -- if two limits have one state, the second is charged on top of the
        -- first

        for j = 1, verb and i - 1 or 0 do
            again = again or KEYS[j] == key
        end
    end

    if again then

        -- the next round does what this one has chosen

    elseif verb == 'punish' then

        --- section punish

        -- the verdict speaks of the time after this request

        verb, again = 'look', true

    elseif verb == 'charge' or verb == 'rebase' then

        if verb == 'rebase' then
            cost = 0
        end

        --- section charge

        -- a refused client has to wait for this limit, too, if it has nothing
        -- left

        if verb == 'charge' and not admitted then
            verb, again = 'next', true
        end
    end

until not again

verdicts = before and before .. result or result
