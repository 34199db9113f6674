-- Files of a job are about to be stored that may never be put: its front end may die in between.
-- args:  id
-- Keys:  deposits
-- Sent twice: writes the same, a little later.

redis.call('ZADD', key('deposits'), seconds(now), args.id)
