-- Tells how far a running job is.
-- args:  id, fence, step, steps, max_events, max_previews
-- texts: data of a preview event, or none
-- Keys:  common's
-- Gives: 1, or 0 where the job is no longer held
-- Sent twice: writes no second event.

if not is_held(args.id, args.fence) or expire(args.id) then return 0 end

local here = table.concat({args.fence, args.step, args.steps}, ' ')
local told, shown = fields(args.id, 'told', 'shown')
if told ~= here then
  redis.call('HSET', key('job', args.id), 'step', args.step, 'steps', args.steps, 'told', here)
  emit(args.id, 'progress', cjson.encode({step = args.step, steps = args.steps}))
end
if ARGV[2] and shown ~= here then
  redis.call('HSET', key('job', args.id), 'shown', here)
  append(key('previews', args.id), args.max_previews, args.id, 'preview', ARGV[2])
end
return 1
