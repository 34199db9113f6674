-- Announces that files are about to be stored for a job that may never be put, if its front end
-- crashes.
-- args:  id
-- Keys:  deposits
-- Sent twice: writes the same with a slightly later time.

redis.call('ZADD', key('deposits'), seconds(now), args.id)
