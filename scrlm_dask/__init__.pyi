# The public names of the package: the only list of them. `lazy_loader` reads it at run time.

from . import errors as errors
from . import events as events
from . import results as results
from .clusters.connect import connect as connect
from .config import FitConfig as FitConfig
from .config import KMeansConfig as KMeansConfig
from .config import LloydConfig as LloydConfig
from .errors import ScrlmError as ScrlmError
from .errors import ScrlmWarning as ScrlmWarning
from .estimators.kmeans import KMeans as KMeans
from .estimators.scrlm import SCRLM as SCRLM
from .kernels.randomness.synthesis import MixtureSpec as MixtureSpec
from .model import Model as Model
from .pipeline.embed import EmbedConfig as EmbedConfig
from .pipeline.embed import embed as embed
from .pipeline.evaluate import evaluate as evaluate
from .pipeline.fit import fit as fit
from .pipeline.ingest import ingest as ingest
from .pipeline.ingest_job import IngestConfig as IngestConfig
from .pipeline.kmeans import kmeans as kmeans
from .pipeline.plan import plan_fit as plan_fit
from .pipeline.rho import scan_rho as scan_rho
from .pipeline.run import Run as Run
from .pipeline.stores import FeatureStore as FeatureStore
from .pipeline.synth import synth as synth
from .sources.registry import SourceOptions as SourceOptions

__version__: str
