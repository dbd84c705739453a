-- Takes a partition over: from here on a former owner's scripts find another claim.
--
-- KEYS[1]  the progress of one partition of one group
-- ARGV     owner, whether missing progress may be made ('1') or is a loss ('0')
if redis.call('EXISTS', KEYS[1]) == 0 then
    if ARGV[2] == '0' then return {'missing'} end
    redis.call('HSET', KEYS[1], 'claim', '0', 'next_offset', '0', 'last_offset', '-1', 'seq', '0',
        'position', '0000000000000000.0000000000000000.00000000')
end
redis.call('HINCRBY', KEYS[1], 'claim', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('HDEL', KEYS[1], 'error')
return redis.call('HMGET', KEYS[1], 'claim', 'next_offset', 'last_offset', 'seq', 'position')
