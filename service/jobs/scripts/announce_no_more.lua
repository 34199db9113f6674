-- A message was taken, or is given up.
-- args:  id, tenant
-- Keys:  webhooks  webhooks:tenant
-- Sent twice: does the same.

keep_quiet(args.id, args.tenant)
