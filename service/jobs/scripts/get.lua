-- Reads a job.
-- args:  id
-- Keys:  job:id
-- Gives: the job, or nil

return whole_job(args.id)
