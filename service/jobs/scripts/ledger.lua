-- The usage ledger: device-seconds of ended jobs, and their payers. Every script may use it.
--
--   ledger   stream, field `record` (JSON, `LedgerRecord` of model/ledger.py): one per ended
--            job, written as it ends, and one per later correction
--   totals   hash, JSON list (quantity, model, tenant class, …): sums of the same records
--
-- The tenant pays for the attempt that ended the job and the earlier work that it resumed, if the
-- job succeeded, is paused, was canceled, or failed by its own request. The operator of the
-- service ('house') pays for everything else: attempts lost to crashed or drained workers, expired
-- jobs, and failures of the service.
--
-- A job has the fields `origin` (JSON: where it ran last), `resumes` (device-seconds of earlier
-- attempts that its snapshots preserve), and after its end `billed` (the payer, and the fence of
-- the paid attempt).

local CLIENTS_FAULT = {invalid_request = true, lora_gone = true, refused_by_safety = true}

-- Stores the device-seconds that the snapshots of a requeued job preserve.
local function set_resumed(id)
  local snapshots, sum = fields(id, 'snapshots'), 0
  for _, snapshot in ipairs(snapshots and cjson.decode(snapshots) or {}) do
    sum = sum + (snapshot.device_seconds or 0)
  end
  redis.call('HSET', key('job', id), 'resumes', seconds(sum))
end

local function payer_of(state, failure)
  local is_clients = state == 'succeeded' or state == 'paused' or state == 'canceled'
    or state == 'failed' and CLIENTS_FAULT[failure]
  return is_clients and 'tenant' or 'house'
end

-- Returns millionths of device-seconds: in total, for compiling, and without effect. Args: fence:
-- of the attempt that ended the job, or nil.
local function taken_by(id, fence)
  local spent, resumes = fields(id, 'spent', 'resumes')
  local all, compiling, last = 0, 0, 0
  for name, claim in pairs(cjson.decode(spent or '{}')) do
    all, compiling = all + claim[1], compiling + claim[2]
    if name == fence then last = claim[1] end
  end
  local resumed = math.min(all - last, tonumber(millionths(tonumber(resumes) or 0)))
  return all, compiling, all - last - resumed
end

local function count(what, record, amount, ...)
  if amount == 0 then return end
  local name = cjson.encode({what, record.model, record.tenant_class or 'default', ...})
  redis.call('HINCRBY', key('totals'), name, whole(amount))
end

-- Returns the fields that all records of a job share: tenant, model with checkpoint, and worker.
local function identity_of(account)
  local f = redis.call('HMGET', account, 'tenant', 'tenant_class', 'key_id', 'model', 'served_as',
    'origin', 'pool', 'state', 'fingerprint')
  local record = f[6] and cjson.decode(f[6]) or {}
  record.tenant, record.tenant_class, record.key = f[1], f[2] or nil, f[3] or nil
  record.model, record.served_as, record.pool = f[4], f[5] or nil, f[7] or nil
  record.outcome = f[8]
  if f[9] and f[9] ~= '' then record.checkpoint = f[9] end
  return record
end

-- Writes a record. Args: used, lost: millionths of device-seconds that the payer pays for, and
-- that the operator pays for.
local function write_record(record, payer, used, lost)
  record.device_seconds = (used + lost) / 1000000
  record.tenant_seconds = payer == 'tenant' and used / 1000000 or 0
  record.house_seconds = ((payer == 'house' and used or 0) + lost) / 1000000
  record.lost_seconds = lost / 1000000
  redis.call('XADD', key('ledger'), '*', 'record', cjson.encode(record))
  count('device_seconds', record, used, record.outcome, payer)
  count('device_seconds', record, lost, 'lost', 'house')
end

-- Records a job's end. Args: before: its former state; made: its deliveries, or nil.
local function record_end(id, before, made)
  local record = identity_of(key('job', id))
  local fence, failure, created, finished, attempts, step, usage, drafted = fields(id, 'fence',
    'error', 'created_at', 'finished_at', 'attempts', 'step', 'usage', 'draft_steps')
  fence = before == 'running' and fence or nil
  failure = failure and cjson.decode(failure).code
  local payer = payer_of(record.outcome, failure)
  local all, compiling, lost = taken_by(id, fence)
  local is_done = record.outcome == 'succeeded' or record.outcome == 'paused'
  record.job, record.error = id, failure or nil
  record.created_at, record.ended_at = tonumber(created), tonumber(finished)
  record.attempts = tonumber(attempts) or 0
  local run = math.max(0, (tonumber(step) or 0) - (tonumber(drafted) or 0))
  record.steps = is_done and cjson.decode(usage).steps or run
  record.compile_seconds = compiling / 1000000
  for what, amount in pairs(made or {}) do
    record[what] = amount
    count(what, record, amount)
  end
  count('jobs', record, 1, record.outcome)
  write_record(record, payer, all - lost, lost)
  redis.call('HSET', key('job', id), 'billed', payer .. ' ' .. (fence or 0))
end

-- Records device-seconds that an attempt reported after the job's end.
local function record_late(account, id, fence, device_seconds)
  local payer, paid = string.match(redis.call('HGET', account, 'billed') or '', '^(%a+) (%d+)$')
  local more = tonumber(millionths(device_seconds))
  if not payer or more == 0 then return end
  local record = identity_of(account)
  record.job, record.ended_at, record.is_correction = id, now, true
  local is_used = tonumber(paid) == fence
  write_record(record, payer, is_used and more or 0, is_used and 0 or more)
end
