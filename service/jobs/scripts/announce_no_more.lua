-- Removes a webhook message that was delivered or given up.
-- args:  id, tenant
-- Keys:  webhooks  webhooks:tenant
-- Sent twice: does the same.

keep_quiet(args.id, args.tenant)
