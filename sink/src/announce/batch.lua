-- One batch of notices, and the progress that says that they were announced: both, or up to the first that fails.
--
-- KEYS[1]  the progress of one partition of one group
-- ARGV     claim, expected next_offset, then for each event with something to say, and for the last one:
--          last_offset, next_offset, seq, position, number of commands, then for each its length and its words
local stands = redis.call('HMGET', KEYS[1], 'claim', 'next_offset')
if not stands[1] then return {'missing', '', ''} end
if stands[1] ~= ARGV[1] then return {'lost', stands[1], ''} end
if stands[2] ~= ARGV[2] then return {'moved', stands[2], ''} end

-- A server that refuses writes must do so before anything is said: PUBLISH is no write, and would pass again at each retry.
redis.call('HSET', KEYS[1], 'next_offset', ARGV[2])

local done = nil
local function save()
    if done then
        redis.call('HSET', KEYS[1], 'last_offset', done[1], 'next_offset', done[2], 'seq', done[3], 'position', done[4])
    end
end

local at = 3
while at <= #ARGV do
    local event = {ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]}
    local commands = tonumber(ARGV[at + 4])
    at = at + 5
    for _ = 1, commands do
        local length = tonumber(ARGV[at])
        local answer = redis.pcall(unpack(ARGV, at + 1, at + length))
        if type(answer) == 'table' and answer.err then
            save()
            return {'failed', event[1], answer.err}
        end
        at = at + 1 + length
    end
    done = event
end
save()
return {'done', '', ''}
