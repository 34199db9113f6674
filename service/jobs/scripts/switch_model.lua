-- Moves a queued job to another model's queue, to start from its first step: queued → queued.
-- args:  id, model (in whose queue it waits), to (the other model), served_by (name of that model,
--        or of the variant of it), fingerprint (of its checkpoint)
-- Keys:  common's
-- Gives: 1, or 0 if it no longer waits there
-- Sent twice: returns the first answer, unless the job was claimed meanwhile.

local state, model = fields(args.id, 'state', 'model')
if state ~= 'queued' then return 0 end
if model == args.to then return 1 end
if model ~= args.model then return 0 end

local job, hash = facts_of(args.id), key('job', args.id)
dequeue(job, 0) -- its tenant has paid for the saved steps
set_usage(hash, steps_run(args.id))
redis.call('SREM', key('kept', model), args.id)
drop_snapshots(args.id, state)
redis.call('HDEL', hash, 'kept', 'room', 'draft_steps')
redis.call('HSET', hash, 'model', args.to, 'served_by', args.served_by,
  'fingerprint', args.fingerprint)
if not fields(args.id, 'served_as') then redis.call('HSET', hash, 'served_as', model) end
job.undone = 1
set_latest(job)
enqueue(args.id)
set_state(job, 'queued', '{}', 'step', 0)
return 1
