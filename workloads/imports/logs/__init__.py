"""Logs of jobs without kernels: what each stage of a pipeline did, what each worker did."""

from workloads.imports.formats import Importer, register
from workloads.imports.logs.pipeline_job import import_pipeline_logs
from workloads.imports.logs.pipeline_log import is_pipeline_log
from workloads.imports.logs.worker_job import import_worker_logs
from workloads.imports.logs.worker_log import is_worker_log

register(Importer("pipeline_log", "logs of pipeline stages (JSON)", is_pipeline_log, import_pipeline_logs))
register(Importer("worker_log", "op-level logs of workers (CSV, Parquet)", is_worker_log, import_worker_logs))
